// Numbers about predictions: of classes a confusion matrix, of quantities errors.

// counts[actual][predicted]
export function confusion(actual, predicted, classes) {
  const counts = Array.from({ length: classes }, () => new Array(classes).fill(0));
  actual.forEach((label, row) => counts[label][predicted[row]]++);
  return counts;
}

export function accuracyOf(counts) {
  const total = counts.flat().reduce((a, b) => a + b, 0);
  return counts.reduce((sum, row, i) => sum + row[i], 0) / total;
}

// Mean squared error, mean absolute error and the coefficient of determination.
export function errorsOf(actual, predicted) {
  const n = actual.length;
  const mean = actual.reduce((a, b) => a + b, 0) / n;
  let squares = 0, absolute = 0, spread = 0;
  actual.forEach((value, row) => {
    squares += (value - predicted[row]) ** 2;
    absolute += Math.abs(value - predicted[row]);
    spread += (value - mean) ** 2;
  });
  return { mse: squares / n, mae: absolute / n, r2: spread > 0 ? 1 - squares / spread : NaN };
}

// The position of the largest score of each row; the first one of several.
export function largestOf(scores, width) {
  const rows = scores.length / width;
  const out = new Int32Array(rows);
  for (let row = 0; row < rows; row++) {
    let best = 0;
    for (let i = 1; i < width; i++) if (scores[row * width + i] > scores[row * width + best]) best = i;
    out[row] = best;
  }
  return out;
}

export function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = Array.from(scores, (score) => Math.exp(score - largest));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / total);
}
