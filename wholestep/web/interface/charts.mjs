// Charts as SVG: curves over epochs, and predictions beside actual values.
import { formatted, make } from "./elements.mjs";

const [WIDTH, HEIGHT] = [360, 200];
const [LEFT, RIGHT, TOP, BOTTOM] = [48, 8, 8, 26];

// Round numbers that divide [low, high] into two to five parts.
function ticks(low, high) {
  const rough = (high - low) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) out.push(i * step || 0);
  return out;
}

// The least and the greatest of many values.
const range = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

function scaleOf(values, { log = false, padded = true } = {}) {
  const finite = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let [low, high] = finite.length ? range(finite) : [log ? 0.1 : 0, 1];
  if (log) {
    [low, high] = [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high))];
    if (low === high) high = 10 * low;
    const count = Math.round(Math.log10(high / low));
    const marks = Array.from({ length: count + 1 }, (_, i) => low * 10 ** i).filter((_, i) => i % Math.ceil(count / 5) === 0);
    return { marks, of: (value) => Math.log(Math.max(value, low) / low) / Math.log(high / low) };
  }
  const pad = padded ? (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5 : 0;
  if (padded) [low, high] = [low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad];
  return { marks: ticks(low, high), of: (value) => (value - low) / (high - low || 1) };
}

function axes(x, y, label) {
  const [across, up] = placing(x, y);
  return [
    ...y.marks.map((mark) => [
      make("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: up(mark), y2: up(mark) }),
      make("text", { x: LEFT - 6, y: up(mark) + 4, "text-anchor": "end" }, y.unit ? y.unit(mark) : formatted(mark)),
    ]),
    ...x.marks.map((mark) => make("text", { x: across(mark), y: HEIGHT - 10, "text-anchor": "middle" }, formatted(mark))),
    make("text", { x: WIDTH - RIGHT, y: HEIGHT + 3, "text-anchor": "end" }, label),
  ].flat();
}

const placing = (x, y) => [
  (value) => LEFT + x.of(value) * (WIDTH - LEFT - RIGHT),
  (value) => HEIGHT - BOTTOM - y.of(value) * (HEIGHT - TOP - BOTTOM),
];

const frame = (label, ...children) =>
  make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 6}`, role: "img", "aria-label": label }, ...children);

// series: [{name, points: [[epoch, value], ...], kind}], without kinds the first is solid and the second dashed.
// `zoomTo(from, to)` is called with the epochs that a drag selects.
export function curves(title, series, { log = false, keys = true, from = 0, zoomTo = null } = {}) {
  const points = series.flatMap((one) => one.points);
  const last = Math.max(from + 2, range(points.map(([epoch]) => epoch))[1]);
  const kindOf = ({ kind }, i) => kind ?? (i ? "second" : "first");
  const x = { marks: ticks(from, last).filter((mark) => Number.isInteger(mark)), of: (value) => (value - from) / (last - from) };
  const y = scaleOf(points.map(([, value]) => value), { log });
  const [across, up] = placing(x, y);
  const drawn = series.map(({ name, points: own, kind }, i) => {
    const shown = own.filter(([, value]) => Number.isFinite(value));
    const path = shown.map(([epoch, value], at) => `${at ? "L" : "M"}${across(epoch).toFixed(1)} ${up(value).toFixed(1)}`);
    const end = shown.at(-1);
    return [
      make("path", { class: kindOf({ kind }, i), d: path.join("") }, make("title", {}, name)),
      end ? make("circle", { class: kind ? `dot ${kind}` : i ? "dot second" : "dot", cx: across(end[0]), cy: up(end[1]), r: 3.5 }) : null,
    ];
  });
  const readings = series.map(({ name, points: own }) => `${name} ${own.length ? formatted(own.at(-1)[1]) : "–"}`);
  const own = keys ? series.map((one, i) => make("span", { class: `key ${kindOf(one, i)}` }, readings[i])) : [];
  const chart = frame(`${title} by epoch: ${readings.slice(0, 20).join(", ")}`, axes(x, y, "epoch"), drawn.flat());
  const figure = make("figure", {}, make("figcaption", {}, make("strong", {}, title), own), chart);
  if (zoomTo !== null) followPointer(chart, { from, last, across, zoomTo, read: (epoch) => own.forEach((key, i) => (key.textContent = epoch === null ? readings[i] : readingAt(series[i], epoch))) });
  return figure;
}

// The value of a curve at its epoch that is nearest.
function readingAt({ name, points }, epoch) {
  if (!points.length) return `${name} –`;
  const [at, value] = points.reduce((a, b) => (Math.abs(b[0] - epoch) < Math.abs(a[0] - epoch) ? b : a));
  return `${name} ${formatted(value)} at ${formatted(at)}`;
}

// A line with the values under the pointer; dragging selects epochs, a double click shows all.
function followPointer(chart, { from, last, across, zoomTo, read }) {
  const line = make("path", { class: "reading" }), selection = make("path", { class: "selection" });
  chart.append(selection, line);
  chart.classList.add("zooms");
  chart.setAttribute("tabindex", "0");
  let start = null;
  const epochAt = ({ clientX }) => {
    const box = chart.getBoundingClientRect();
    const place = (((clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    return from + Math.min(1, Math.max(0, place)) * (last - from);
  };
  chart.addEventListener("pointerdown", (event) => {
    start = epochAt(event);
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    const epoch = epochAt(event);
    line.setAttribute("d", `M${across(epoch).toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}`);
    read(epoch);
    if (start !== null) selection.setAttribute("d", `M${across(start).toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}H${across(epoch).toFixed(1)}V${TOP}Z`);
  });
  chart.addEventListener("pointerup", (event) => {
    const [low, high] = [start ?? 0, epochAt(event)].sort((a, b) => a - b);
    const chosen = start !== null && high - low > 0.02 * (last - from);
    start = null;
    selection.removeAttribute("d");
    if (chosen) zoomTo(low, high);
  });
  for (const end of ["pointercancel", "pointerleave"]) {
    chart.addEventListener(end, () => {
      line.removeAttribute("d");
      read(null);
    });
  }
  chart.addEventListener("dblclick", () => zoomTo(0, Infinity));
}

// Values of equal steps as bars that can be chosen: by pointer, or by arrow keys and Enter.
export function timeline(title, values, choose, label, unit) {
  const y = scaleOf([0, ...values]);
  const x = { marks: ticks(0, Math.max(1, values.length)).filter((mark) => Number.isInteger(mark)), of: (value) => value / Math.max(1, values.length) };
  const [across, up] = placing(x, y);
  const peak = values.indexOf(range(values)[1]);
  const bar = (value, i) => make("path", { class: i === peak ? "block peak" : "block", d: `M${across(i).toFixed(2)} ${up(0).toFixed(1)}V${up(value).toFixed(1)}H${across(i + 1).toFixed(2)}V${up(0).toFixed(1)}Z`, click: () => choose(i) }, make("title", {}, label(i)));
  const blocks = values.map(bar);
  const reading = make("span", {}, values.length ? `peak: ${label(peak)}` : "");
  let at = peak;
  const chart = frame(`${title}, kernel by kernel; the peak is at ${values.length ? label(peak) : "none"}`, axes(x, { ...y, unit }, "kernel"), blocks);
  chart.setAttribute("tabindex", "0");
  chart.setAttribute("role", "application");
  chart.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key === "Enter") choose(at);
    if (!(event.key in steps) || !values.length) return;
    event.preventDefault();
    at = Math.min(values.length - 1, Math.max(0, at + steps[event.key]));
    reading.textContent = label(at);
    for (const [i, block] of blocks.entries()) block.classList.toggle("chosen", i === at);
  });
  return make("figure", {}, make("figcaption", {}, make("strong", {}, title), reading), chart);
}

// Points [[across, up], ...] and a line of the ideal, from [x, y] to [x, y].
function scatter(title, points, [from, to], labels, y = null) {
  const x = scaleOf(points.map(([across]) => across));
  y ??= scaleOf(points.map(([, up]) => up));
  const [across, up] = placing(x, y);
  return make("figure", {},
    make("figcaption", {}, make("strong", {}, title), make("span", {}, labels)),
    frame(`${title}: ${labels}`,
      axes(x, y, "actual"),
      make("line", { class: "ideal", x1: across(from[0]), y1: up(from[1]), x2: across(to[0]), y2: up(to[1]) }),
      points.map((point) => make("circle", { class: "point", cx: across(point[0]).toFixed(1), cy: up(point[1]).toFixed(1), r: 2.5 })),
    ),
  );
}

// Predictions and residuals over actual values; points: [[actual, predicted], ...]
export function residuals(points) {
  const actual = points.map(([value]) => value);
  const [low, high] = [Math.min(...actual), Math.max(...actual)];
  return make("div", { class: "charts" },
    scatter("Predicted", points, [[low, low], [high, high]], "over actual values", scaleOf(points.flat())),
    scatter("Residual", points.map(([a, p]) => [a, p - a]), [[low, 0], [high, 0]], "predicted − actual"),
  );
}

// counts[actual][predicted] as a table whose cells are shaded by the share of their row.
export function matrix(counts, classes, caption = "Confusion matrix: a row for each actual class, a column for each predicted one") {
  const cell = (count, row, i, j) => {
    const share = count / Math.max(1, row.reduce((a, b) => a + b, 0));
    const kind = count === 0 ? "zero" : share > 0.55 ? "full" : null;
    return make("td", { class: kind, "--share": share.toFixed(3), title: `actual ${classes[i]}, predicted ${classes[j]}: ${count}` }, count);
  };
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make("table", { class: "matrix" },
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, make("td", {}), classes.map((name) => make("th", { scope: "col", title: name }, name)))),
      make("tbody", {}, counts.map((row, i) => make("tr", {}, make("th", { scope: "row", title: classes[i] }, classes[i]), row.map((count, j) => cell(count, row, i, j))))),
    ));
}
