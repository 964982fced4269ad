// A fitted table encoder: columns of a frame as the arrays that a model reads, by the rules of `ws.data.Encoder`.
import { DataError, list, repr, shortened } from "./errors.mjs";
import { Column, needFinite, needTargets } from "./frame.mjs";
import { dayOfYear, EXAMPLES, NOTATIONS, parseDate, secondsOf } from "./dates.mjs";

const UNSEEN = 0; // the code of values that the training rows do not have

export class Encoding {
  // stored: the JSON in the header of a file of weights
  constructor(stored) {
    if (stored.version !== 1) throw new DataError(`the encoder has version ${stored.version}; expected 1.`);
    Object.assign(this, stored);
  }

  get parts() {
    return [
      ...this.numbers.map((part) => ({ ...part, type: "number" })),
      ...this.dates.map((part) => ({ ...part, type: "date" })),
      ...this.categories.map((part) => ({ ...part, type: typeof part.values[0] === "string" ? "text" : "number" })),
      ...this.words.map((part) => ({ ...part, type: "text" })),
    ];
  }

  get classes() {
    return this.target?.kind === "Classes" ? this.target.values : null;
  }

  // The inputs of a model by name, as {data, shape} of one row per row of the frame.
  encode(frame) {
    const columns = new Map(this.parts.map((part) => [part.name, this.#asInTraining(part, frame)]));
    const rows = frame.length;
    const arrays = {};
    const features = [
      ...this.numbers.flatMap((part) => encodeNumbers(part, columns.get(part.name))),
      ...this.dates.flatMap((part) => encodeDates(part, columns.get(part.name))),
    ];
    if (features.length) arrays.x = stack(Float32Array, features, rows);
    if (this.categories.length) {
      const codes = this.categories.map((part) => encodeCategories(part, columns.get(part.name)));
      arrays.categories = stack(Int32Array, withOffsets(codes, this.categories.map(sizeOf)), rows);
    }
    if (this.words.length) arrays.words = this.#encodeWords(columns, rows);
    return arrays;
  }

  // The targets of a column, of which a loss reads class indices or numbers.
  encodeTarget(column) {
    if (!this.target) throw new DataError("the model was trained without targets.");
    needTargets(column);
    if (this.target.kind === "Classes") return encodeClasses(this.target, column);
    if (column.kind !== "number") {
      throw new DataError(`the targets are ${column.kind}; the model was trained to predict numbers.`);
    }
    return { data: Float32Array.from(column.values, Number), shape: [column.length] };
  }

  #asInTraining(part, frame) {
    if (!frame.columns.has(part.name)) {
      throw new DataError(
        `the table lacks the column ${repr(part.name)}, which the model was trained with; it has: ` +
          `${list(frame.names)}. Name columns as in training; their order does not matter.`,
      );
    }
    let column = frame.column(part.name);
    if (part.type === "date" && column.kind === "text" && !column.allMissing) column = datesFromText(part, column);
    if (column.allMissing || column.kind === part.type) {
      if (part.std !== undefined && part.type === "number") needFinite(part.name, column);
      return column;
    }
    throw new DataError(
      `the column ${repr(part.name)} holds ${column.kind}, e.g. ${repr(column.present[0])}; in training it held ` +
        `${part.type}. Convert it, or read both tables in the same way.`,
    );
  }

  #encodeWords(columns, rows) {
    const length = Math.max(...this.words.map((part) => part.length));
    const texts = this.words.map((part) => encodeWords(part, columns.get(part.name), length));
    const codes = withOffsets(texts, this.words.map((part) => part.values.length));
    const data = new Int32Array(rows * codes.length * length);
    for (let row = 0; row < rows; row++) {
      codes.forEach((code, i) => data.set(code.subarray(row * length, (row + 1) * length), (row * codes.length + i) * length));
    }
    return { data, shape: [rows, codes.length, length] };
  }
}

const sizeOf = (part) => part.values.length + Number(part.gaps);

function encodeNumbers({ mean, std, gaps }, column) {
  const scaled = column.values.map((value, row) => ((column.missing[row] ? mean : Number(value)) - mean) / std);
  return gaps ? [scaled, column.missing] : [scaled];
}

// Seconds, standardised, and sine and cosine of the position in the year, the week and the day.
function encodeDates({ mean, std, gaps, clock }, column) {
  const phases = [
    ({ days }) => dayOfYear(days) / 365.25,
    ({ days }) => ((((days + 3) % 7) + 7) % 7) / 7, // 1970 began on a Thursday
    ({ micros }) => micros / 1e6 / 86400,
  ].slice(0, clock ? 3 : 2);
  const features = [
    (date) => (secondsOf(date) - mean) / std,
    ...phases.flatMap((phase) => [Math.sin, Math.cos].map((wave) => (date) => wave(2 * Math.PI * phase(date)))),
  ].map((feature) => column.values.map((date, row) => (column.missing[row] ? 0 : feature(date))));
  return gaps ? [...features, column.missing] : features;
}

// Codes from 1 in the order of `values`; with `gaps` a missing value has the last code.
function encodeCategories(part, column) {
  const codes = new Map(part.values.map((value, i) => [keyOf(value), i + 1]));
  return column.values.map((value, row) => {
    if (column.missing[row]) return part.gaps ? sizeOf(part) : UNSEEN;
    return codes.get(keyOf(value)) ?? UNSEEN;
  });
}

const keyOf = (value) => (typeof value === "string" ? value : Number(value));

function encodeWords(part, column, length) {
  const codes = new Map(part.values.map((word, i) => [word, i + 1]));
  const out = new Int32Array(column.length * length);
  column.values.forEach((text, row) => {
    if (column.missing[row]) return;
    const known = wordsOf(text).flatMap((word) => codes.get(word) ?? []);
    out.set(known.slice(0, part.length), row * length);
  });
  return out;
}

export const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];

// All columns share one embedding table: the codes of each are offset by the sizes of those before it.
function withOffsets(codes, sizes) {
  let start = 0;
  return codes.map((column, i) => {
    const offset = start;
    start += sizes[i];
    return column.map((code) => (code === UNSEEN ? UNSEEN : code + offset));
  });
}

function stack(ArrayType, columns, rows) {
  const data = new ArrayType(rows * columns.length);
  columns.forEach((column, i) => {
    for (let row = 0; row < rows; row++) data[row * columns.length + i] = Number(column[row]);
  });
  return { data, shape: [rows, columns.length] };
}

function encodeClasses({ values, answers }, column) {
  const codes = new Map(values.map((value, i) => [keyOf(value), i]));
  const indices = column.values.map((value, row) => {
    const code = codes.get(keyOf(value));
    if (code === undefined) {
      throw new DataError(
        `the label ${repr(value)} in row ${row} was not among the classes that the model was trained with: ` +
          `${shortened(values)}. Leave such rows out, or train with all classes.`,
      );
    }
    return code;
  });
  return { data: answers ? Float32Array.from(indices) : Int32Array.from(indices), shape: [column.length] };
}

function datesFromText(part, column) {
  const pattern = NOTATIONS[part.notation];
  const values = column.values.map((text, row) => {
    const date = column.missing[row] ? { days: 0, micros: 0 } : parseDate(text, pattern);
    if (date) return date;
    throw new DataError(
      `the column ${repr(part.name)} holds ${repr(text)} in row ${row}; expected a date written as ${part.notation}, ` +
        `e.g. ${repr(EXAMPLES[part.notation])}. Correct it.`,
    );
  });
  return new Column("date", "date", values, column.missing);
}
