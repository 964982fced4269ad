// CSV files as named columns, by the rules of `ws.data.read_frame`.
import { DataError } from "./errors.mjs";
import { parseDate, ISO_TIME } from "./dates.mjs";
import { Column, Frame, refuseDuplicates } from "./frame.mjs";

const MISSING = new Set(["", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "?", "-"]);
const INTEGER = /^[+-]?[0-9]+$/;
const NUMBER = /^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?$/i;
const INFINITE = /^([+-]?)inf(inity)?$/i;
const LARGEST_INTEGER = 2n ** 63n;

// The text of a file in UTF-8, without a byte order mark.
export function utf8(path, bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new DataError(`${path} is not text in UTF-8. Save it as UTF-8.`);
  }
}

// The delimiter that occurs most often in the first line, outside of quotes.
export function delimiterOf(text) {
  const line = text.slice(0, text.search(/[\r\n]|$/)).replace(/"[^"]*"/g, "");
  const count = (mark) => line.split(mark).length;
  return [",", ";", "\t", "|"].reduce((best, mark) => (count(mark) > count(best) ? mark : best));
}

// Rows as [number, cells], as Python's csv.reader reads them; empty lines are left out.
export function rowsOf(text, delimiter = ",") {
  const rows = [];
  let number = 0, at = 0;
  while (at < text.length) {
    const cells = [];
    let cell = "", started = false, quoted = false, done = false;
    while (!done) {
      const c = text[at];
      if (c === undefined || (!quoted && (c === "\n" || c === "\r"))) {
        at += c === "\r" && text[at + 1] === "\n" ? 2 : 1;
        done = true;
      } else if (quoted) {
        if (c !== '"') cell += c;
        else if (text[at + 1] === '"') { cell += '"'; at++; }
        else quoted = false;
        at++;
      } else if (c === delimiter) {
        cells.push(cell);
        cell = "";
        started = false;
        at++;
        if (at >= text.length || text[at] === "\n" || text[at] === "\r") started = true;
      } else {
        if (c === '"' && cell === "" && !started) quoted = true;
        else cell += c;
        started = true;
        at++;
      }
    }
    number++;
    if (started || cells.length) rows.push([number, [...cells, cell]]);
  }
  return rows;
}

const isNumber = (text) => NUMBER.test(text) || INFINITE.test(text) || /^[+-]?nan$/i.test(text);

function isHeader(path, cells) {
  if (!cells.every(isNumber) || cells.every((cell, i) => cell === String(i))) return true;
  if (new Set(cells).size < cells.length) return false;
  const shown = cells.slice(0, 4).join(", ") + (cells.length > 4 ? ", …" : "");
  throw new DataError(
    `${path}: the first line is numbers, ${shown}: are they data, or names of columns? Choose below whether the file ` +
      "has a line of names.",
  );
}

// The names of the columns and the rows of data; `header` is true, false, or null to go by the first line.
export function splitHeader(path, lines, header = null) {
  header ??= !lines.length || isHeader(path, lines[0][1].map((cell) => cell.trim()));
  if (lines.length <= Number(header)) throw new DataError(`${path} has no rows of data.`);
  const names = lines[0][1].map((cell, i) => (header ? cell.trim() : String(i)));
  const rows = header ? lines.slice(1) : lines;
  for (const [number, row] of rows) {
    if (row.length !== names.length) {
      throw new DataError(
        `${path}, line ${number}: ${row.length} values; expected ${names.length} as in the first line.`,
      );
    }
  }
  return [names, rows];
}

export function readFrame(path, text, { header = null, delimiter = delimiterOf(text) } = {}) {
  const [names, rows] = splitHeader(path, rowsOf(text, delimiter), header);
  refuseDuplicates(names);
  return new Frame(new Map(names.map((name, i) => [name, columnOf(rows.map(([, row]) => row[i]))])));
}

export function columnOf(cells) {
  const text = cells.map((cell) => cell.trim());
  const missing = text.map((cell) => MISSING.has(cell.toLowerCase()));
  const present = text.filter((_, row) => !missing[row]);
  if (!present.length) return new Column("number", "float64", text.map(() => 0), missing);
  for (const [kind, dtype, empty, read] of READERS) {
    const parsed = read(present);
    if (parsed) {
      let at = 0;
      return new Column(kind, dtype, missing.map((gap) => (gap ? empty : parsed[at++])), missing);
    }
  }
  return new Column("text", "text", text.map((cell, row) => (missing[row] ? "" : cell)), missing);
}

const READERS = [
  ["number", "bool", false, (cells) => every(cells, (c) => ({ true: true, false: false })[c.toLowerCase()])],
  ["number", "int64", 0, (cells) => every(cells, integer)],
  ["number", "float64", 0, (cells) => every(cells, number)],
  ["date", "date", { days: 0, micros: 0 }, (cells) => every(cells, (c) => parseDate(c, ISO_TIME))],
];

// The parsed cells; null if one cannot be parsed.
function every(cells, parse) {
  const out = [];
  for (const cell of cells) {
    const value = parse(cell);
    if (value === undefined || value === null) return null;
    out.push(value);
  }
  return out;
}

function integer(cell) {
  if (!INTEGER.test(cell)) return null;
  if (cell.length > 15) {
    const exact = BigInt(cell.replace("+", ""));
    if (exact >= LARGEST_INTEGER || exact < -LARGEST_INTEGER) return null;
  }
  return Number(cell);
}

export function number(cell) {
  if (NUMBER.test(cell)) return Number(cell);
  const match = INFINITE.exec(cell);
  return match ? (match[1] === "-" ? -Infinity : Infinity) : null;
}
