// Files of a user as the arrays of a model: rows of a CSV file, .npy arrays, images.
// `spec` is the description that the page carries: the inputs of the program, the table encoder, classes, pixels.
import { DataError, list, repr, shapeText, shortened } from "./errors.mjs";
import { needTargets } from "./frame.mjs";
import { Encoding } from "./encoding.mjs";

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array, uint8: Uint8Array,
  bool: Uint8Array,
};
const WEIGHT = "sample_weight";

// Names of the inputs that `predict` reads, and of the targets.
export function inputNames({ manifest }) {
  const predicted = manifest.programs.predict.inputs;
  const targets = manifest.programs.train.inputs.filter((name) => !predicted.includes(name) && name !== WEIGHT);
  return { predicted, targets };
}

const inputOf = ({ manifest }, name) => manifest.inputs.find((input) => input.name === name);
const rowShape = (input) => input.shape.slice(1);
const sizeOf = (shape) => shape.reduce((a, b) => a * b, 1);

// Arrays by name as a data set; the weights of rows are 1.
function datasetOf(spec, inputs, rows, notes = []) {
  const { targets } = inputNames(spec);
  if (!rows) throw new DataError("the data set is empty: it has 0 rows. Training needs at least one example.");
  const weight = inputOf(spec, WEIGHT);
  if (weight) inputs[WEIGHT] = { data: new ARRAYS[weight.dtype](rows).fill(1), shape: [rows] };
  return { inputs, rows, notes, hasTargets: targets.every((name) => name in inputs) };
}

export function selectRows({ inputs, notes, hasTargets }, rows) {
  const pick = ({ data, shape }) => {
    const width = sizeOf(shape.slice(1));
    const out = new data.constructor(rows.length * width);
    rows.forEach((row, i) => out.set(data.subarray(row * width, (row + 1) * width), i * width));
    return { data: out, shape: [rows.length, ...shape.slice(1)] };
  };
  const picked = Object.fromEntries(Object.entries(inputs).map(([name, array]) => [name, pick(array)]));
  return { inputs: picked, rows: rows.length, notes, hasTargets };
}

// -- tables ------------------------------------------------------------------------------------------------------

// The columns that may hold the target: the one of training, else any if one column is left over.
export function targetChoices(spec, frame) {
  if (spec.target && frame.columns.has(spec.target)) return [spec.target];
  if (spec.encoding) return [];
  const [name] = inputNames(spec).predicted;
  return frame.names.length === sizeOf(rowShape(inputOf(spec, name))) + 1 ? [...frame.names].reverse() : [];
}

export function datasetOfFrame(spec, frame, target = targetChoices(spec, frame)[0] ?? null) {
  const rest = target === null ? frame : frame.without(target);
  const { targets } = inputNames(spec);
  if (spec.encoding) {
    const encoding = new Encoding(spec.encoding);
    const inputs = encoding.encode(rest);
    if (target !== null) inputs[targets[0]] = encoding.encodeTarget(frame.column(target));
    return datasetOf(spec, inputs, frame.length);
  }
  const [name] = inputNames(spec).predicted;
  const x = matrix(rest);
  const inputs = { [name]: checked(spec, name, x, frame.length) };
  if (target !== null) inputs[targets[0]] = targetOf(spec, targets[0], frame.column(target));
  return datasetOf(spec, inputs, frame.length);
}

// Columns of numbers without gaps as {data, shape}.
function matrix(frame) {
  const advice = "A model with ws.data.Encoder() reads such columns; here, leave the column out or replace the values.";
  for (const [name, column] of frame.columns) {
    if (column.kind !== "number") {
      const kind = column.kind === "text" ? "text" : "dates";
      throw new DataError(
        `the column ${repr(name)} of the table holds ${kind}, and this model computes with numbers. ${advice}`,
      );
    }
    const row = column.missing.findIndex(Boolean);
    if (row >= 0) throw new DataError(`the column ${repr(name)} of the table has no value in row ${row}. ${advice}`);
  }
  const columns = [...frame.columns.values()];
  const data = new Float64Array(frame.length * columns.length);
  columns.forEach((column, i) => column.values.forEach((value, row) => (data[row * columns.length + i] = Number(value))));
  return { data, shape: [frame.length, columns.length] };
}

function targetOf(spec, name, column) {
  needTargets(column);
  if (column.kind === "number") return labels(spec, name, { data: column.values.map(Number), shape: [column.length] });
  const codes = new Map((spec.classes ?? []).map((label, i) => [String(label), i]));
  const data = column.values.map((value, row) => {
    if (codes.has(value)) return codes.get(value);
    throw new DataError(
      codes.size
        ? `the label ${repr(value)} in row ${row} is not among the classes: ${shortened(spec.classes)}. Correct it.`
        : `the labels are ${column.kind}, e.g. ${repr(value)}; this model predicts numbers. Give a column of numbers.`,
    );
  });
  return labels(spec, name, { data, shape: [column.length] });
}

// -- arrays ------------------------------------------------------------------------------------------------------

// .npy arrays, [{name, data, shape}], each for the input of its name, else for one that its rows fit.
export function datasetOfArrays(spec, arrays) {
  const { predicted, targets } = inputNames(spec);
  const free = [...predicted, ...targets];
  const inputs = {}, notes = [];
  const fits = (name, { shape }) => sizeOf(rowShape(inputOf(spec, name))) === sizeOf(shape.slice(1));
  for (const array of [...arrays].sort((a, b) => b.shape.length - a.shape.length)) {
    const name = free.find((one) => one === array.name) ?? free.find((one) => fits(one, array));
    if (!name) {
      const expected = free.map((one) => `${one} ${shapeText(inputOf(spec, one).shape)}`).join(", ");
      throw new DataError(
        `${array.name} has shape ${shapeText(array.shape)}; expected ${expected || "no other array"}. Reshape the array, ` +
          "or name its file after the input.",
      );
    }
    free.splice(free.indexOf(name), 1);
    const rows = array.shape[0];
    if (targets.includes(name)) inputs[name] = labels(spec, name, array);
    else if (isPixels(spec, array)) {
      inputs[name] = checked(spec, name, scaled(spec.image, array), rows);
      notes.push(`pixels from 0 to 255 were scaled to ${spec.image.low} to ${spec.image.high}`);
    } else inputs[name] = checked(spec, name, array, rows);
  }
  const missing = predicted.find((name) => !(name in inputs));
  if (missing) {
    throw new DataError(
      `the input ${repr(missing)} is missing: expected ${list([...predicted, ...targets])}; received ` +
        `${list(Object.keys(inputs))}. Drop all files together.`,
    );
  }
  const lengths = Object.entries(inputs).map(([name, { shape }]) => `${name}: ${shape[0]}`);
  if (new Set(Object.values(inputs).map(({ shape }) => shape[0])).size > 1) {
    throw new DataError(
      `all arrays need one row per example; received {${lengths.join(", ")}} rows. Cut them to one length.`,
    );
  }
  return datasetOf(spec, inputs, inputs[predicted[0]].shape[0], notes);
}

const isPixels = (spec, { data }) => spec.image && data instanceof Uint8Array;

export function scaled({ low, high }, { data, shape }) {
  const values = Float32Array.from({ length: 256 }, (_, value) => low + (value / 255) * (high - low));
  return { data: new Float32Array(data.length).map((_, i) => values[data[i]]), shape };
}

// An array for an input, in its dtype; an error for another shape, for NaN and infinity, for indices out of range.
function checked(spec, name, { data, shape }, rows) {
  const input = inputOf(spec, name);
  const width = sizeOf(rowShape(input));
  const reshaped = spec.image && sizeOf(shape.slice(1)) === width;
  if (!reshaped && String(shape.slice(1)) !== String(rowShape(input))) {
    throw new DataError(
      `the input ${repr(name)} has shape ${shapeText(input.shape)}; received ${shapeText(shape)}. Reshape the array.`,
    );
  }
  const floats = input.dtype.startsWith("float");
  const wrong = floats
    ? (value) => !Number.isFinite(value)
    : (value) => value < 0 || (input.below !== null && value >= input.below) || !Number.isInteger(Number(value));
  const values = floats && typeof data[0] === "bigint" ? Float64Array.from(data, Number) : data;
  const at = values.findIndex(wrong);
  if (at >= 0) {
    const position = `[${[Math.floor(at / width), ...(width > 1 ? [at % width] : [])].join(", ")}]`;
    throw new DataError(
      floats
        ? `${repr(name)} holds ${Number.isNaN(values[at]) ? "nan" : values[at] > 0 ? "inf" : "-inf"} at ${position}; every ` +
            "weight would become NaN. Drop the row or replace the value."
        : `the input ${repr(name)} holds indices from 0 to ${(input.below ?? 2 ** 31) - 1}; received ${values[at]} at ` +
            `position ${position}. Correct the values.`,
    );
  }
  return { data: cast(values, input.dtype), shape: [rows, ...rowShape(input)] };
}

function cast(data, dtype) {
  const ArrayType = ARRAYS[dtype];
  if (data instanceof ArrayType) return data;
  return ArrayType.from(data, dtype === "int64" ? BigInt : Number);
}

// Targets in the dtype of their input; class numbers are checked against the model's outputs.
function labels(spec, name, array) {
  const input = inputOf(spec, name);
  if (input.dtype.startsWith("float")) {
    const rows = checked({ ...spec, image: null }, name, { ...array, shape: likeRows(array, input) }, array.shape[0]);
    if (spec.task === "answers") refuseOtherAnswers(rows.data);
    return rows;
  }
  const values = Array.from(array.data, Number);
  if (values.some((value) => !Number.isInteger(value))) {
    throw new DataError("the labels are floats; classes are integers, numbered from 0. Save them as integers.");
  }
  const high = values.reduce((a, b) => Math.max(a, b), 0), low = values.reduce((a, b) => Math.min(a, b), 0);
  const classes = spec.classes?.length ?? input.below;
  if (classes && high >= classes) {
    throw new DataError(
      `the labels go up to ${high}, which needs ${high + 1} classes; the model has ${classes} outputs. Number the ` +
        "classes from 0.",
    );
  }
  if (low < 0) throw new DataError(`the labels go down to ${low}; classes are numbered from 0: y - y.min().`);
  return { data: cast(values, input.dtype), shape: likeRows(array, input) };
}

// (rows,) and (rows, 1) are the same targets.
function likeRows({ data, shape }, input) {
  const rest = rowShape(input);
  return sizeOf(shape.slice(1)) === sizeOf(rest) ? [data.length / sizeOf(rest), ...rest] : shape;
}

function refuseOtherAnswers(data) {
  const row = data.findIndex((value) => value < 0 || value > 1);
  if (row >= 0) {
    throw new DataError(
      `binary_cross_entropy takes targets from 0 (no) to 1 (yes); received ${data[row]} in row ${row}. (y + 1) / 2 ` +
        "makes them of -1 and 1.",
    );
  }
}

// -- images ------------------------------------------------------------------------------------------------------

// [{path, pixels}], `pixels` as bytes in the order of the model's axes: labelled by folder or by the start of the name.
export function datasetOfImages(spec, images) {
  const { predicted, targets } = inputNames(spec);
  const size = sizeOf(spec.image.shape);
  const data = new Float32Array(images.length * size);
  images.forEach(({ pixels }, i) => data.set(scaled(spec.image, { data: pixels }).data, i * size));
  const inputs = { [predicted[0]]: { data, shape: [images.length, ...rowShape(inputOf(spec, predicted[0]))] } };
  const codes = images.map(({ path }) => classOf(spec.classes ?? [], path));
  const without = codes.findIndex((code) => code === null);
  if (without >= 0 && codes.some((code) => code !== null)) {
    throw new DataError(
      `the image ${repr(images[without].path)} has no label; expected a folder or a name that begins with a class, e.g. ` +
        `${repr(`${spec.classes[0]}/1.png`)} or ${repr(`${spec.classes[0]}_1.png`)}; classes are ${shortened(spec.classes)}. ` +
        "Rename it, or drop it alone to predict it.",
    );
  }
  if (without < 0) inputs[targets[0]] = labels(spec, targets[0], { data: codes, shape: [codes.length] });
  return datasetOf(spec, inputs, images.length);
}

function classOf(classes, path) {
  const parts = path.split("/");
  const file = parts.pop();
  const words = [parts.pop(), /^(.+?)[_\- .]/.exec(file)?.[1]];
  const codes = words.map((word) => classes.findIndex((label) => String(label) === word)).filter((code) => code >= 0);
  return codes[0] ?? null;
}
