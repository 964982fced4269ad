// Curves of runs over epochs: smoothed, and cut to the epochs that are shown.
const LARGEST = 1e300; // a number that a chart can place

// A moving average without the bias of its start; `weight` is that of the past.  Epochs that were thinned out count.
export function smooth(points, weight) {
  let sum = 0, share = 0, before = null;
  return points.map(([at, value]) => {
    const past = weight ** Math.max(1, before === null ? 1 : at - before);
    before = at;
    sum = past * sum + (1 - past) * value;
    share = past * share + (1 - past);
    return [at, sum / share];
  });
}

// The points of a number of a run: [[epoch, value], ...], without those that are not finite.
export function pointsOf(run, name) {
  const [at, values] = Object.hasOwn(run.series, name) ? run.series[name] : [[], []];
  return at.map((epoch, i) => [epoch, values[i]]).filter(([, value]) => typeof value === "number" && Math.abs(value) < LARGEST);
}

export const inside = (points, { from, to }) => points.filter(([epoch]) => epoch >= from && epoch <= to);
