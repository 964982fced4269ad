// A report about runs: curves of all of them, and tables of what they reached, how they differ and what they saved.
import { byId, fill, formatted, make, tableOf, titled } from "./elements.mjs";
import { curves, matrix } from "./charts.mjs";

const COLOURS = 8;
const MOST_KEYS = 6; // runs whose numbers stand above a chart
const MOST_POINTS = 1000; // of a curve
const LARGEST = 1e300; // a number that a chart can place
const NONE = "–";

const { runs } = JSON.parse(byId("spec").textContent);
runs.forEach((run, i) => Object.assign(run, { shown: true, kind: `run run-${i % COLOURS}` }));
const shown = () => runs.filter((run) => run.shown);
const isNumber = (value) => typeof value === "number";
const namesOf = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row)))];

// -- curves --------------------------------------------------------------------------------------------------------

// A moving average without the bias of its start; `weight` is that of the past.
function smooth(points, weight) {
  let sum = 0, share = 0;
  return points.map(([at, value]) => {
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return [at, sum / share];
  });
}

// At most MOST_POINTS points, among them the least and the greatest of each part.
function thin(points) {
  if (points.length <= MOST_POINTS) return points;
  const width = Math.ceil((2 * points.length) / MOST_POINTS), out = [];
  for (let start = 0; start < points.length; start += width) {
    const part = points.slice(start, start + width);
    const ends = part.reduce(([low, high], point) => [point[1] < low[1] ? point : low, point[1] > high[1] ? point : high], [part[0], part[0]]);
    out.push(...[...new Set(ends)].sort((a, b) => a[0] - b[0]));
  }
  return out;
}

function series(run, name, weight) {
  const points = run.epochs.filter((row) => isNumber(row[name]) && Math.abs(row[name]) < LARGEST).map((row) => [row.epoch, row[name]]);
  const { from, to } = zoom();
  return thin((weight ? smooth(points, weight) : points).filter(([epoch]) => epoch >= from && epoch <= to));
}

// The epochs that the curves show.
function zoom() {
  const from = Math.max(0, Number(byId("from").value) || 0);
  return { from, to: Math.max(from + 1, Number(byId("to").value) || Infinity) };
}

function drawCurves() {
  const weight = Number(byId("smoothing").value), log = byId("log").checked;
  byId("smoothed").textContent = weight.toFixed(2);
  const names = namesOf(runs.flatMap(({ epochs }) => epochs)).filter((name) => runs.some(({ epochs }) => epochs.some((row) => isNumber(row[name]))));
  const titles = [...new Set(names.filter((name) => name !== "epoch").map((name) => name.replace(/^val_/, "")))];
  fill(byId("charts"), titles.map((name) => {
    const lines = shown().flatMap((run) => [
      { name: run.name, kind: run.kind, points: series(run, name, weight) },
      { name: `${run.name}, validation`, kind: `${run.kind} held`, points: series(run, `val_${name}`, weight) },
    ]).filter(({ points }) => points.length);
    return curves(titled(name), lines, { log, keys: shown().length <= MOST_KEYS, from: zoom().from });
  }));
}

// -- tables --------------------------------------------------------------------------------------------------------

// A row for each name, a column for each run; names whose values differ may be marked, or shown alone.
function comparison(values, { marked = true, alone = false } = {}) {
  const columns = shown();
  const rows = namesOf(columns.map(values)).map((name) => [name, columns.map((run) => values(run)[name] ?? NONE)]);
  const differs = ([, cells]) => marked && new Set(cells).size > 1;
  const kept = alone ? rows.filter(differs) : rows;
  if (!kept.length) return make("p", { class: "quiet" }, columns.length ? "All are equal." : "No run is shown.");
  return make("table", {},
    make("thead", {}, make("tr", {}, make("td", {}), columns.map((run) => make("th", { scope: "col", class: "text whole" }, run.name)))),
    make("tbody", {}, kept.map((row) => make("tr", { class: differs(row) ? "differs" : null },
      make("th", { scope: "row", class: "text" }, differs(row) ? `≠ ${row[0]}` : row[0]),
      row[1].map((cell) => make("td", { class: "text whole" }, cell))))),
  );
}

// The last value of a number, and the best one with its epoch where the run says what is better.
function lastOf(run, name) {
  const rows = run.epochs.filter((row) => isNumber(row[name]));
  if (!rows.length) return NONE;
  const last = formatted(rows.at(-1)[name]);
  const mode = run.modes[name] ?? (/(^|_)loss$/.test(name) ? "min" : null);
  if (mode === null) return last;
  const best = rows.reduce((a, b) => ((mode === "min" ? b[name] < a[name] : b[name] > a[name]) ? b : a));
  return best[name] === rows.at(-1)[name] ? `${last} (best)` : `${last} (best ${formatted(best[name])} in epoch ${best.epoch})`;
}

function summary(run) {
  const names = namesOf(run.epochs).filter((name) => name !== "epoch");
  const stopped = run.stopped ? { "stopped by": run.stopped } : {};
  const numbers = Object.fromEntries(names.map((name) => [name, lastOf(run, name)]).filter(([, text]) => text !== NONE));
  return { epochs: formatted(run.epochs.length), updates: formatted(run.updates), ...stopped, ...numbers };
}

function size(bytes) {
  if (bytes === undefined) return NONE;
  return bytes < 1e6 ? `${formatted(bytes / 1e3)} kB` : `${formatted(bytes / 1e6)} MB`;
}

function drawCheckpoints() {
  const rows = shown().flatMap((run) => run.checkpoints.map((one) => ({ run: run.name, ...one, ...one.logs })));
  const own = ["run", "name", "epoch", "updates"];
  const logs = namesOf(shown().flatMap(({ checkpoints }) => checkpoints.map((one) => one.logs ?? {})));
  const problems = rows.some(({ problem }) => problem) ? ["problem"] : [];
  const line = (row) => [...own.map((name) => row[name] ?? NONE), size(row.bytes), ...[...logs, ...problems].map((name) => row[name] ?? NONE)];
  fill(byId("checkpoints"), tableOf([...own.map(titled), "Size", ...[...logs, ...problems].map(titled)], rows.map(line)));
}

function drawMatrices() {
  const found = shown().flatMap((run) => Object.entries(run.epochs.at(-1) ?? {}).filter(([, value]) => isMatrix(value)).map(([name, counts]) => {
    return matrix(counts, counts.map((_, i) => String(i)), `${run.name}: ${titled(name)}`);
  }));
  byId("matrices").hidden = !found.length;
  fill(byId("matrix"), found);
}

const isMatrix = (value) => Array.isArray(value) && value.length > 1 && value.every((row) => Array.isArray(row) && row.length === value.length && row.every(isNumber));

function draw() {
  fill(byId("summary"), comparison(summary, { marked: false }));
  fill(byId("settings"), comparison(({ settings }) => settings, { alone: byId("differences").checked && shown().length > 1 }));
  fill(byId("environment"), comparison(({ environment }) => environment));
  drawCheckpoints();
  drawMatrices();
  drawCurves();
}

function legend(run) {
  const box = make("input", { type: "checkbox", checked: true, change: ({ target }) => {
    run.shown = target.checked;
    draw();
  } });
  return make("label", { class: "check" }, box, make("span", { class: `key ${run.kind}` }, run.name));
}

fill(byId("runs"), runs.map(legend));
byId("only").hidden = runs.length < 2;
byId("differences").addEventListener("change", draw);
byId("log").addEventListener("change", drawCurves);
for (const id of ["smoothing", "from", "to"]) byId(id).addEventListener("input", drawCurves);
draw();
document.documentElement.dataset.ready = "true";
