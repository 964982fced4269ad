// A report about runs: curves of all of them, what they reached, how they differ, what they saved, and their compiled steps.
import { byId, fill, formatted, make, tableOf, titled } from "./elements.mjs";
import { curves, matrix, residuals } from "./charts.mjs";
import { askForStep, follow } from "./live.mjs";
import { inside, pointsOf, smooth } from "./series.mjs";
import { bytes, stepView } from "./step.mjs";

const COLOURS = 8;
const MOST_KEYS = 6; // runs whose numbers stand above a chart
const FIRST_SHOWN = 24; // of many runs, how many are shown at first
const MOST_LISTED = 200; // runs in the list
const MOST_STEPS = 4; // compiled steps that a board's page asks for
const NONE = "–";

const spec = JSON.parse(byId("spec").textContent);
const { runs, steps, predictions } = spec;
const prepare = (run, i) => Object.assign(run, { shown: i < FIRST_SHOWN, kind: `run run-${i % COLOURS}` });
runs.forEach(prepare);
const shown = () => runs.filter((run) => run.shown);
const isNumber = (value) => typeof value === "number";
const namesOf = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row)))];

// -- curves --------------------------------------------------------------------------------------------------------

// The epochs that the curves show.
function zoom() {
  const from = Math.max(0, Number(byId("from").value) || 0);
  return { from, to: Math.max(from + 1, Number(byId("to").value) || Infinity) };
}

function zoomTo(from, to) {
  byId("from").value = Math.max(0, Math.floor(from));
  byId("to").value = to === Infinity ? "" : Math.max(1, Math.ceil(to));
  drawCurves();
}

function series(run, name, weight) {
  const points = pointsOf(run, name);
  return inside(weight ? smooth(points, weight) : points, zoom());
}

function drawCurves() {
  const weight = Number(byId("smoothing").value), log = byId("log").checked;
  byId("smoothed").textContent = weight.toFixed(2);
  const names = namesOf(shown().map((run) => run.series));
  const titles = [...new Set(names.map((name) => name.replace(/^val_/, "")))];
  fill(byId("charts"), titles.map((name) => {
    const lines = shown().flatMap((run) => [
      { name: run.name, kind: run.kind, points: series(run, name, weight) },
      { name: `${run.name}, validation`, kind: `${run.kind} held`, points: series(run, `val_${name}`, weight) },
    ]).filter(({ points }) => points.length);
    return curves(titled(name), lines, { log, keys: shown().length <= MOST_KEYS, from: zoom().from, zoomTo });
  }));
}

// Keys on the page, outside of fields: + and - zoom, arrows move, 0 shows everything, l changes the scale.
function onKey(event) {
  if (event.target.closest("input, select, textarea, svg[role=application]") || event.ctrlKey || event.metaKey || event.altKey) return;
  const { from, to } = zoom();
  const last = to === Infinity ? Math.max(1, ...runs.map(({ epochs }) => epochs)) : to;
  const width = last - from;
  const moves = {
    "+": [from + width / 4, last - width / 4], "-": [from - width / 2, last + width / 2], 0: [0, Infinity],
    ArrowLeft: [from - width / 4, last - width / 4], ArrowRight: [from + width / 4, last + width / 4],
  };
  if (event.key === "l") byId("log").click();
  if (!Object.hasOwn(moves, event.key) || (event.key.startsWith("Arrow") && !event.target.closest("#charts"))) return;
  event.preventDefault();
  zoomTo(...moves[event.key]);
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
  const points = pointsOf(run, name);
  if (!points.length) return NONE;
  const [lastEpoch, lastValue] = points.at(-1), last = formatted(lastValue);
  const mode = Object.hasOwn(run.modes, name) ? run.modes[name] : /(^|_)loss$/.test(name) ? "min" : null;
  if (mode === null) return last;
  const [epoch, best] = points.reduce((a, b) => ((mode === "min" ? b[1] < a[1] : b[1] > a[1]) ? b : a));
  return best === lastValue || epoch === lastEpoch ? `${last} (best)` : `${last} (best ${formatted(best)} in epoch ${epoch})`;
}

function summary(run) {
  const stopped = run.stopped ? { "stopped by": run.stopped } : {};
  const numbers = Object.fromEntries(Object.keys(run.series).map((name) => [name, lastOf(run, name)]).filter(([, text]) => text !== NONE));
  return { epochs: formatted(run.epochs), updates: formatted(run.updates), ...stopped, ...numbers };
}

function drawCheckpoints() {
  const rows = shown().flatMap((run) => run.checkpoints.map((one) => ({ run: run.name, ...one, ...one.logs })));
  const own = ["run", "name", "epoch", "updates"];
  const logs = namesOf(shown().flatMap(({ checkpoints }) => checkpoints.map((one) => one.logs ?? {})));
  const problems = rows.some(({ problem }) => problem) ? ["problem"] : [];
  const line = (row) => [...own.map((name) => row[name] ?? NONE), bytes(row.bytes), ...[...logs, ...problems].map((name) => row[name] ?? NONE)];
  fill(byId("checkpoints"), tableOf([...own.map(titled), "Size", ...[...logs, ...problems].map(titled)], rows.map(line)));
}

function drawMatrices() {
  const classes = (counts) => counts.map((_, i) => String(i));
  const measured = shown().flatMap((run) => Object.entries(run.matrices).filter(([, value]) => isMatrix(value)).map(([name, counts]) => matrix(counts, classes(counts), `${run.name}: ${titled(name)}`)));
  const predicted = shown().filter(({ name }) => Object.hasOwn(predictions, name)).flatMap(({ name }) => predictionOf(name, predictions[name], classes));
  byId("matrices").hidden = !measured.length && !predicted.length;
  fill(byId("matrix"), measured, predicted);
}

function predictionOf(name, { matrix: counts, pairs, rows, of, data, problem }, classes) {
  const caption = `${name}: predictions of ${formatted(rows)} of ${formatted(of)} ${data} rows`;
  if (problem) return [make("p", { class: "quiet" }, `${name}: ${problem}`)];
  if (counts) return [matrix(counts, classes(counts), caption)];
  return pairs?.length ? [make("div", { class: "wide" }, make("p", { class: "quiet" }, caption), residuals(pairs))] : [];
}

const isMatrix = (value) => Array.isArray(value) && value.length > 1 && value.every((row) => Array.isArray(row) && row.length === value.length && row.every(isNumber));

function draw() {
  fill(byId("summary"), comparison(summary, { marked: false }));
  fill(byId("settings"), comparison(({ settings }) => settings, { alone: byId("differences").checked && shown().length > 1 }));
  fill(byId("environment"), comparison(({ environment }) => environment));
  drawCurves();
  drawCheckpoints();
  drawMatrices();
}

function legend(run) {
  const box = make("input", { type: "checkbox", checked: run.shown, change: ({ target }) => {
    run.shown = target.checked;
    draw();
    hurry();
  } });
  return make("label", { class: "check" }, box, make("span", { class: `key ${run.kind}` }, run.name));
}

// The list of runs whose names have the text of the field.
function drawRuns() {
  const text = byId("filter").value.toLowerCase();
  const matching = runs.filter(({ name }) => name.toLowerCase().includes(text));
  fill(byId("runs"), matching.slice(0, MOST_LISTED).map(legend), matching.length > MOST_LISTED ? make("span", { class: "quiet" }, `and ${formatted(matching.length - MOST_LISTED)} more`) : []);
}

function showMatching() {
  const text = byId("filter").value.toLowerCase();
  let left = FIRST_SHOWN;
  for (const run of runs) run.shown = run.name.toLowerCase().includes(text) && left-- > 0;
  drawRuns();
  draw();
  hurry();
}

function drawSteps() {
  byId("steps").hidden = !steps.length;
  fill(byId("step-views"), steps.map(stepView));
}

function drawControls() {
  byId("many").hidden = runs.length <= FIRST_SHOWN;
  byId("only").hidden = runs.length < 2;
  drawRuns();
}

// -- a board's page ------------------------------------------------------------------------------------------------

const EMPTY = { series: {}, matrices: {}, modes: {}, settings: {}, environment: {}, checkpoints: [], epochs: 0, updates: 0, stopped: "" };
const DRAW_EVERY = 300; // milliseconds, while runs arrive
let hurry = () => {};
let drawn = 0, stale = false;

function drawSoon() {
  stale = performance.now() - drawn < DRAW_EVERY;
  if (stale) return;
  draw();
  drawn = performance.now();
}

function onList(names) {
  const before = new Map(runs.map((run) => [run.name, run]));
  if (names.length === before.size && names.every((name) => before.has(name))) return;
  runs.splice(0, runs.length, ...names.map((name, i) => before.get(name) ?? prepare({ name, ...EMPTY }, i)));
  drawControls();
  stale = true;
}

function onRun(name, description) {
  const run = runs.find((one) => one.name === name);
  Object.assign(run, EMPTY, { stopped: description.problem ?? "" }, description.problem ? {} : description);
  for (const plan of description.plans ?? []) showStep(name, plan);
  drawSoon();
}

const asked = new Set();

async function showStep(name, plan) {
  if (asked.has(plan) || asked.size === MOST_STEPS) return;
  asked.add(plan);
  try {
    steps.push(await askForStep(name, plan));
    drawSteps();
  } catch {
    asked.delete(plan);
  }
}

function onRound(problem) {
  if (stale) draw();
  stale = false;
  byId("live").textContent = problem ? `The board does not answer (${problem.message}); what is shown is the last that it said.` : `Live: asked again every ${spec.every / 1000} s.`;
  byId("live").classList.toggle("alert", Boolean(problem));
}

byId("filter").addEventListener("input", showMatching);
byId("differences").addEventListener("change", draw);
byId("log").addEventListener("change", drawCurves);
for (const id of ["smoothing", "from", "to"]) byId(id).addEventListener("input", drawCurves);
document.addEventListener("keydown", onKey);
drawControls();
draw();
drawSteps();
byId("live").hidden = !spec.every;
if (spec.every) hurry = follow({ every: spec.every, wanted: (name) => runs.some((run) => run.name === name && run.shown), onList, onRun, onRound });
document.documentElement.dataset.ready = "true";
