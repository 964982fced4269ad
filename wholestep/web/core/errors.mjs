// Errors that say what was received, what was expected and how to fix it; shown to the user as they are.

export class DataError extends Error {
  constructor(text) {
    super(text);
    this.name = "DataError";
  }
}

// A value as Python's repr prints it, so that both sides word an error alike.
export function repr(value) {
  if (typeof value === "string") {
    const quote = value.includes("'") && !value.includes('"') ? '"' : "'";
    const escaped = value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\r", "\\r").replaceAll("\t", "\\t");
    return quote + (quote === "'" ? escaped.replaceAll("'", "\\'") : escaped) + quote;
  }
  if (typeof value === "boolean") return value ? "True" : "False";
  return String(value);
}

export const list = (values) => [...values].map(repr).join(", ");

// The first eight labels.
export function shortened(values) {
  return list(values.slice(0, 8)) + (values.length > 8 ? ", …" : "");
}

export const shapeText = (shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
