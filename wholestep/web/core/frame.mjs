// Tables with named columns.
import { DataError, list, repr } from "./errors.mjs";

export class Column {
  // kind: "number", "date" or "text"; dtype: the type as reports print it.
  constructor(kind, dtype, values, missing) {
    Object.assign(this, { kind, dtype, values, missing });
  }

  get length() {
    return this.values.length;
  }

  get present() {
    return this.values.filter((_, row) => !this.missing[row]);
  }

  get allMissing() {
    return this.missing.every(Boolean);
  }

  select(rows) {
    return new Column(this.kind, this.dtype, rows.map((r) => this.values[r]), rows.map((r) => this.missing[r]));
  }
}

export class Frame {
  constructor(columns) {
    this.columns = columns;
  }

  get names() {
    return [...this.columns.keys()];
  }

  get length() {
    return this.columns.size ? this.columns.values().next().value.length : 0;
  }

  column(name) {
    const column = this.columns.get(name);
    if (!column) throw new DataError(`the table has no column ${repr(name)}; it has: ${list(this.names)}.`);
    return column;
  }

  without(...names) {
    return new Frame(new Map([...this.columns].filter(([name]) => !names.includes(name))));
  }

  select(rows) {
    return new Frame(new Map([...this.columns].map(([name, column]) => [name, column.select(rows)])));
  }
}

export function refuseDuplicates(names) {
  const twice = names.filter((name, i) => names.indexOf(name) !== i).sort();
  if (twice.length) {
    throw new DataError(
      `the table has two columns called ${repr(twice[0])}; rename one, since columns are selected by name.`,
    );
  }
}

// Raise an error if a column holds infinity.
export function needFinite(name, column) {
  const row = column.values.findIndex((value, i) => !column.missing[i] && !Number.isFinite(Number(value)));
  if (row >= 0) {
    const shown = column.values[row] > 0 ? "inf" : "-inf";
    throw new DataError(`the column ${repr(name)} holds ${shown} in row ${row}; replace it by a number, or by a gap.`);
  }
}

export function needTargets(column) {
  const rows = column.missing.flatMap((gap, row) => (gap ? [row] : []));
  if (rows.length) {
    throw new DataError(
      `the target has no value in ${rows.length} rows, the first of them row ${rows[0]}. Leave them out of the file.`,
    );
  }
}
