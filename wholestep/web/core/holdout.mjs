// The rows that `validation=0.2` holds out: NumPy's `default_rng(seed).permutation(n)`, with the same bits.
import { DataError } from "./errors.mjs";

const [MASK64, MASK128] = [(1n << 64n) - 1n, (1n << 128n) - 1n];
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n; // of PCG64

// NumPy's SeedSequence: four words of entropy, hashed into each other; then 64-bit words for a generator.
function seedWords(seed, count) {
  const entropy = [];
  for (let rest = BigInt(seed); rest > 0n || !entropy.length; rest >>= 32n) entropy.push(Number(rest & 0xffffffffn));
  let constant = 0x43b0d7e5;
  const hash = (value) => {
    value = (value ^ constant) >>> 0;
    constant = Math.imul(constant, 0x931e8875) >>> 0;
    value = Math.imul(value, constant) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mix = (x, y) => {
    const result = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) >>> 0;
    return (result ^ (result >>> 16)) >>> 0;
  };
  const pool = Array.from({ length: 4 }, (_, i) => hash(entropy[i] ?? 0));
  for (let from = 0; from < 4; from++) {
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
  }
  for (const word of entropy.slice(4)) for (let to = 0; to < 4; to++) pool[to] = mix(pool[to], hash(word));
  constant = 0x8b51f9dd;
  const words = Array.from({ length: 2 * count }, (_, i) => {
    let value = (pool[i % 4] ^ constant) >>> 0;
    constant = Math.imul(constant, 0x58f38ded) >>> 0;
    value = Math.imul(value, constant) >>> 0;
    return BigInt((value ^ (value >>> 16)) >>> 0);
  });
  return Array.from({ length: count }, (_, i) => words[2 * i] | (words[2 * i + 1] << 32n));
}

// Random 32-bit words of PCG64 (XSL-RR), the low half of each 64-bit word first.
function* pcg64(seed) {
  const [high, low, incHigh, incLow] = seedWords(seed, 4);
  const increment = ((((incHigh << 64n) | incLow) << 1n) | 1n) & MASK128;
  const next = (state) => (state * MULTIPLIER + increment) & MASK128;
  let state = next((increment + ((high << 64n) | low)) & MASK128);
  for (;;) {
    state = next(state);
    const word = ((state >> 64n) ^ state) & MASK64;
    const turn = state >> 122n;
    const out = ((word >> turn) | (word << (64n - turn))) & MASK64;
    yield Number(out & 0xffffffffn);
    yield Number(out >> 32n);
  }
}

// An integer in [0, most]: words are masked to as many bits as `most` has, and larger ones are rejected.
function bounded(words, most) {
  const mask = 0xffffffff >>> Math.clz32(most);
  for (;;) {
    const value = (words.next().value & mask) >>> 0;
    if (value <= most) return value;
  }
}

export function permutation(seed, n) {
  const words = pcg64(seed);
  const order = Int32Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = bounded(words, i);
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

// Row numbers to train on and those held out, as `ws.data.split` chooses them; each in ascending order.
export function holdout(count, fraction, seed) {
  if (fraction === 0) return [Array.from({ length: count }, (_, i) => i), []];
  const most = roundHalfEven(fraction * count);
  if (!(most > 0 && most < count)) {
    throw new DataError(
      `split: ${fraction} of ${count} rows leaves one part empty; choose another fraction of rows for validation.`,
    );
  }
  const held = new Uint8Array(count);
  for (const row of permutation(seed, count).subarray(count - most)) held[row] = 1;
  const rows = Array.from({ length: count }, (_, i) => i);
  return [rows.filter((row) => !held[row]), rows.filter((row) => held[row])];
}

function roundHalfEven(value) {
  const low = Math.floor(value);
  return value - low === 0.5 ? low + (low % 2) : Math.round(value);
}
