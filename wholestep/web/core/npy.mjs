// Arrays in .npy files, by NumPy's format 1.0 to 3.0; and the float32 arrays that a page writes.
import { DataError, repr } from "./errors.mjs";

const MAGIC = "\x93NUMPY";
const ARRAYS = {
  f4: Float32Array, f8: Float64Array,
  i1: Int8Array, i2: Int16Array, i4: Int32Array, i8: BigInt64Array,
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, u8: BigUint64Array,
  b1: Uint8Array,
};

const refuse = (path, why) => {
  throw new DataError(`${path} is not a complete .npy file of numbers: ${why}; make one with np.save(${repr(path)}, x).`);
};

// {data, shape, dtype}: `data` a typed array in the order of rows.
export function readNpy(path, bytes) {
  const head = String.fromCharCode(...bytes.subarray(0, 6));
  if (head.startsWith("PK\x03\x04")) refuse(path, "it holds several arrays (.npz)");
  if (bytes.length < 12 || head !== MAGIC) refuse(path, "its first bytes are not those of the format");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const wide = bytes[6] > 1;
  const start = wide ? 12 : 10;
  const end = start + (wide ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = new TextDecoder().decode(bytes.subarray(start, end));
  const descr = /'descr':\s*'([<>|=]?)([a-zA-Z]\d+)'/.exec(header);
  const order = /'fortran_order':\s*(True|False)/.exec(header);
  const sizes = /'shape':\s*\(([\d,\s]*)\)/.exec(header);
  if (end > bytes.length || !order || !sizes) refuse(path, "its header is damaged");
  if (!descr || (descr[2] !== "f2" && !ARRAYS[descr[2]])) {
    const dtype = /'descr':\s*([^,]*)/.exec(header)?.[1] ?? "unknown values";
    throw new DataError(
      `${path} is not a .npy file of numbers: it holds ${dtype}; make one with np.save(${repr(path)}, x).`,
    );
  }
  const shape = sizes[1].split(",").filter((part) => part.trim()).map(Number);
  const count = shape.reduce((a, b) => a * b, 1);
  const itemsize = Number(descr[2].slice(1));
  if (bytes.length - end !== count * itemsize) {
    refuse(path, `shape (${sizes[1]}) needs ${count * itemsize} bytes; the file has ${bytes.length - end}`);
  }
  const raw = bytes.slice(end);
  if (descr[1] === ">") swapBytes(raw, itemsize);
  const data = descr[2] === "f2" ? halves(new Uint16Array(raw.buffer)) : new ARRAYS[descr[2]](raw.buffer);
  return { data: order[1] === "True" ? byRows(data, shape) : data, shape, dtype: descr[2] };
}

function swapBytes(raw, size) {
  for (let at = 0; at < raw.length; at += size) raw.subarray(at, at + size).reverse();
}

function halves(bits) {
  return Float32Array.from(bits, (b) => {
    const sign = b & 0x8000 ? -1 : 1, exponent = (b >> 10) & 31, fraction = b & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024);
  });
}

// An array in the order of columns (Fortran) in the order of rows.
function byRows(data, shape) {
  const out = new data.constructor(data.length);
  const index = shape.map(() => 0);
  for (let at = 0; at < data.length; at++) {
    let row = 0;
    for (let axis = 0; axis < shape.length; axis++) row = row * shape[axis] + index[axis];
    out[row] = data[at];
    for (let axis = 0; axis < shape.length && ++index[axis] === shape[axis]; axis++) index[axis] = 0;
  }
  return out;
}

export function writeNpy({ data, shape }) {
  const kind = Object.keys(ARRAYS).find((name) => ARRAYS[name] === data.constructor);
  const dims = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  const head = `{'descr': '${kind.endsWith("1") ? "|" : "<"}${kind}', 'fortran_order': False, 'shape': (${dims}), }`;
  const padded = head.padEnd(Math.ceil((head.length + 11) / 64) * 64 - 11) + "\n";
  const out = new Uint8Array(10 + padded.length + data.byteLength);
  out.set([...MAGIC].map((c) => c.charCodeAt(0)));
  out.set([1, 0, padded.length & 255, padded.length >> 8], 6);
  out.set(new TextEncoder().encode(padded), 10);
  out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 10 + padded.length);
  return out;
}
