// Files in the safetensors format: a length, a JSON header, and the bytes of the arrays.
import { DataError } from "./errors.mjs";

const ARRAYS = {
  F32: Float32Array, F64: Float64Array, I8: Int8Array, I16: Int16Array, I32: Int32Array, I64: BigInt64Array,
  U8: Uint8Array, U16: Uint16Array, U32: Uint32Array, U64: BigUint64Array, BOOL: Uint8Array,
};

// {tensors: Map of {dtype, shape, bytes}, metadata}; `bytes` are copies.
export function readSafetensors(path, file) {
  const refuse = (why) => {
    throw new DataError(`${path} is not a complete safetensors file: ${why}. Take another copy of the checkpoint.`);
  };
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = file.length < 8 ? -1 : Number(view.getBigUint64(0, true));
  if (length < 2 || length > file.length - 8) refuse("its header is missing or longer than the file");
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, 8 + length)));
  } catch {
    refuse("its header is not JSON");
  }
  const body = file.subarray(8 + length);
  const { __metadata__: metadata = {}, ...entries } = header;
  const tensors = new Map();
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(entries)) {
    const size = ARRAYS[dtype]?.BYTES_PER_ELEMENT ?? refuse(`${name} has dtype ${dtype}`);
    const [begin, end] = offsets;
    const expected = shape.reduce((a, b) => a * b, 1) * size;
    if (!(begin >= 0 && end - begin === expected && end <= body.length)) refuse(`the bytes of ${name} are not all there`);
    tensors.set(name, { dtype, shape, bytes: body.slice(begin, end) });
  }
  return { tensors, metadata };
}

// The bytes of a file; arrays are aligned to 8 bytes, the widest first, as the reference implementation writes them.
export function writeSafetensors(tensors, metadata = {}) {
  const sorted = [...tensors].sort(
    ([a, x], [b, y]) => widthOf(y) - widthOf(x) || (a < b ? -1 : a > b ? 1 : 0),
  );
  const header = { __metadata__: metadata };
  let end = 0;
  for (const [name, { dtype, shape, bytes }] of sorted) {
    header[name] = { dtype, shape, data_offsets: [end, (end += bytes.length)] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const start = 8 + Math.ceil(text.length / 8) * 8;
  const out = new Uint8Array(start + end).fill(32, 8, start);
  new DataView(out.buffer).setBigUint64(0, BigInt(start - 8), true);
  out.set(text, 8);
  for (const [name, { bytes }] of sorted) out.set(bytes, start + header[name].data_offsets[0]);
  return out;
}

const widthOf = ({ dtype }) => ARRAYS[dtype].BYTES_PER_ELEMENT;

export const valuesOf = ({ dtype, bytes }) => new ARRAYS[dtype](bytes.slice().buffer);
