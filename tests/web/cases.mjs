// Runs cases given as JSON on standard input, [name, arguments] each, and prints their values or errors as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const core = process.argv[2];
const load = (name) => import(pathToFileURL(`${core}/${name}.mjs`));
const [csv, encoding, npy, safetensors, holdout, measures, dataset] = await Promise.all(
  ["csv", "encoding", "npy", "safetensors", "holdout", "measures", "dataset"].map(load),
);
const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));
const base64 = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64");
const packed = ({ data, shape }) => ({ kind: data.constructor.name, data: base64(data), shape });

const frameOf = (text) => csv.readFrame("table.csv", csv.utf8("table.csv", bytes(text)), { delimiter: "," });

const unpackedRows = ({ inputs, rows, hasTargets }) => ({
  rows, hasTargets, inputs: Object.fromEntries(Object.entries(inputs).map(([name, array]) => [name, packed(array)])),
});

const RUN = {
  frame: (text) => Object.fromEntries(
    [...frameOf(text).columns].map(([name, { dtype, values, missing }]) => [
      name, { dtype, missing, values: dtype === "date" ? values.map((v) => v.days * 86400e6 + v.micros) : values.map(String) },
    ]),
  ),
  rows: (text, delimiter) => csv.rowsOf(text, delimiter),
  encode: (stored, text) => {
    const arrays = new encoding.Encoding(JSON.parse(stored)).encode(frameOf(text));
    return Object.fromEntries(Object.entries(arrays).map(([name, array]) => [name, packed(array)]));
  },
  target: (stored, text, name) => packed(new encoding.Encoding(JSON.parse(stored)).encodeTarget(frameOf(text).column(name))),
  npy: (file) => packed(npy.readNpy("x.npy", bytes(file))),
  npy_again: (file) => base64(npy.writeNpy(npy.readNpy("x.npy", bytes(file)))),
  safetensors: (file) => {
    const { tensors, metadata } = safetensors.readSafetensors("a.safetensors", bytes(file));
    return base64(safetensors.writeSafetensors(tensors, metadata));
  },
  dataset_of_csv: (spec, text) => unpackedRows(dataset.datasetOfFrame(spec, frameOf(text))),
  dataset_of_npy: (spec, files) => unpackedRows(
    dataset.datasetOfArrays(spec, Object.entries(files).map(([name, file]) => ({ name, ...npy.readNpy(name, bytes(file)) }))),
  ),
  dataset_of_images: (spec, images) => unpackedRows(
    dataset.datasetOfImages(spec, Object.entries(images).map(([path, pixels]) => ({ path, pixels: Uint8Array.from(pixels) }))),
  ),
  holdout: (count, fraction, seed) => holdout.holdout(count, fraction, seed),
  permutation: (seed, count) => Array.from(holdout.permutation(seed, count)),
  confusion: measures.confusion,
  errors: measures.errorsOf,
};

const out = JSON.parse(readFileSync(0)).map(([name, args]) => {
  try {
    return { value: RUN[name](...args) };
  } catch (error) {
    if (error.name !== "DataError") throw error;
    return { error: error.message };
  }
});
process.stdout.write(JSON.stringify(out));
