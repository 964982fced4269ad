// Dropped files as data sets: tables, arrays and images; images are read through a canvas.
import { DataError, repr } from "./errors.mjs";
import { readFrame, utf8 } from "./csv.mjs";
import { readNpy } from "./npy.mjs";
import { datasetOfArrays, datasetOfFrame, datasetOfImages } from "./dataset.mjs";

const IMAGE = /\.(png|jpe?g|gif|webp|bmp|avif|svg)$/i;
const pathOf = (file) => file.webkitRelativePath || file.path || file.name;
const bytesOf = async (file) => new Uint8Array(await file.arrayBuffer());

// What kind of files these are: "csv", "npy", "images" or "checkpoint".
export function kindOf(spec, files) {
  const kinds = new Set(files.map(({ name }) => {
    if (/\.(csv|tsv|txt)$/i.test(name)) return "csv";
    if (/\.npy$/i.test(name)) return "npy";
    if (/\.safetensors$/i.test(name)) return "checkpoint";
    if (IMAGE.test(name)) return "images";
    const expected = ["a .csv file", "an .npy array", spec.image ? "images" : null].filter(Boolean).join(" or ");
    throw new DataError(`${name} cannot be read here; expected ${expected}. Save the data in one of these formats.`);
  }));
  const [kind] = kinds;
  if (kinds.size > 1) {
    throw new DataError(`received files of several kinds, ${[...kinds].join(" and ")}; expected one kind. Drop them one after the other.`);
  }
  if (kind === "images" && !spec.image) {
    throw new DataError("this model reads numbers, not images; received images. Drop a .csv file or .npy arrays.");
  }
  if (kind === "csv" && spec.task === "other") {
    throw new DataError("this model reads arrays, not tables; received a .csv file. Drop .npy arrays.");
  }
  if (kind !== "images" && kind !== "npy" && files.length > 1) {
    throw new DataError(`received ${files.length} ${kind} files; expected one. Join them to one file.`);
  }
  return kind;
}

export async function readTable(file, header) {
  return readFrame(file.name, utf8(file.name, await bytesOf(file)), { header });
}

// A data set, of rows for training or prediction; options: {header, target, invert}.
export async function readFiles(spec, files, { header = null, target, invert = false } = {}) {
  const kind = kindOf(spec, files);
  if (kind === "csv") {
    const frame = await readTable(files[0], header);
    return { ...datasetOfFrame(spec, frame, target), frame };
  }
  if (kind === "npy") {
    const arrays = await Promise.all(files.map(async (file) => ({ name: file.name.replace(/\.npy$/i, ""), ...readNpy(file.name, await bytesOf(file)) })));
    const single = arrays.find(({ shape }) => shape.length === 0);
    if (single) throw new DataError(`${repr(single.name)} is a single number; data has one row per example.`);
    return datasetOfArrays(spec, arrays);
  }
  const images = await Promise.all(files.map((file) => readImage(spec, file, invert)));
  return { ...datasetOfImages(spec, images), images };
}

async function readImage(spec, file, invert) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new DataError(`${file.name} is not an image that this browser reads. Save it as PNG or JPEG.`);
  }
  const [, height, width] = spec.image.shape;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  return { path: pathOf(file), pixels: pixelsOf(spec, context, invert) };
}

// The pixels of a canvas of the model's size as bytes, channel by channel; transparent ones are black.
export function pixelsOf(spec, context, invert) {
  const [channels, height, width] = spec.image.shape;
  const { data } = context.getImageData(0, 0, width, height);
  const count = height * width;
  const out = new Uint8Array(channels * count);
  for (let i = 0; i < count; i++) {
    const [r, g, b, alpha] = data.subarray(4 * i, 4 * i + 4);
    const values = channels === 1 ? [0.299 * r + 0.587 * g + 0.114 * b] : [r, g, b];
    values.forEach((value, c) => {
      const seen = Math.round((value * alpha) / 255);
      out[c * count + i] = invert ? 255 - seen : seen;
    });
  }
  return out;
}

// A canvas that shows one row of an image input.
export function thumbnail(spec, data, row) {
  const { shape: [channels, height, width], low, high } = spec.image;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const count = width * height, start = row * channels * count;
  for (let i = 0; i < count; i++) {
    for (let c = 0; c < 3; c++) {
      const value = data[start + (channels === 1 ? 0 : c) * count + i];
      image.data[4 * i + c] = (255 * (value - low)) / (high - low);
    }
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// The files of a drop, those in folders too, with their paths and in the order of these.
export async function droppedFiles(transfer) {
  const files = [...transfer.files], items = [...transfer.items].filter(({ kind }) => kind === "file");
  const entries = items.map((item) => item.webkitGetAsEntry?.());
  if (!entries.some((entry) => entry?.isDirectory)) return files;
  try {
    // Chromium reads folders that are dropped on a page from the disk through handles alone; other browsers have none.
    const handles = items.map((item) => item.getAsFileSystemHandle?.());
    const found = handles[0] ? handles.map(async (handle) => filesOfHandle(await handle)) : entries.map(filesOfEntry);
    const all = (await Promise.all(found)).flat().filter(({ name }) => !name.startsWith("."));
    return all.sort((a, b) => (a.path < b.path ? -1 : 1));
  } catch {
    throw new DataError("this browser cannot read a dropped folder here. Open the folder, select its files and drop these.");
  }
}

async function filesOfHandle(handle, folder = "") {
  const path = folder + handle.name;
  if (handle.kind === "file") return [Object.assign(await handle.getFile(), { path })];
  const found = [];
  for await (const inner of handle.values()) found.push(...await filesOfHandle(inner, `${path}/`));
  return found;
}

async function filesOfEntry(entry) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return [Object.assign(file, { path: entry.fullPath.slice(1) })];
  }
  const reader = entry.createReader(), found = [];
  for (;;) {
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!part.length) break;
    found.push(...part);
  }
  return (await Promise.all(found.map(filesOfEntry))).flat();
}
