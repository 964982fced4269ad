// A compiled step: memory by purpose, by layer and over the step; its kernels by layer; the code of the one that is chosen.
import { fill, formatted, make, tableOf } from "./elements.mjs";
import { timeline } from "./charts.mjs";

const MOST_ROWS = 400; // kernels of a table; the others stand below their layers
const NONE = "–";

export function bytes(count) {
  if (typeof count !== "number") return NONE;
  const unit = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, size]) => count >= size);
  return unit ? `${formatted(Number((count / unit[1]).toPrecision(4)))} ${unit[0]}` : `${formatted(count)} B`;
}

export function seconds(time) {
  if (typeof time !== "number") return NONE;
  const unit = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]].find(([, size]) => time >= size) ?? ["ns", 1e-9];
  return `${formatted(Number((time / unit[1]).toPrecision(3)))} ${unit[0]}`;
}

const timeOf = (kernel) => kernel.measured ?? kernel.seconds;

// One step as a fold; `number` is its place in the page, for the ids of its parts.
export function stepView(step, number) {
  if (step.problem) return make("p", { class: "alert" }, step.problem);
  const code = make("div", { id: `code-${number}`, class: "code", tabindex: "-1", "aria-live": "polite" }, make("p", { class: "quiet" }, "Choose a kernel: its code is shown here."));
  const choose = (kernel, focus = true) => {
    for (const other of document.querySelectorAll(`[data-step="${number}"]`)) other.setAttribute("aria-pressed", String(other.dataset.kernel === String(kernel.id)));
    fill(code, kernelDetails(kernel, step));
    if (focus) code.scrollIntoView({ block: "nearest" });
  };
  const button = (kernel, text) => make("button", { type: "button", class: "link", "data-step": number, "data-kernel": kernel.id, "aria-pressed": "false", click: () => choose(kernel) }, text);
  return make("details", { class: "step", open: number === 0 },
    make("summary", {}, make("h3", {}, `${step.runs.join(", ")}: ${step.kind} step for ${step.target}`)),
    make("dl", { class: "tiles" }, tiles(step).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    make("div", { class: "charts" },
      timeline("Memory over the step", step.timeline, (i) => step.kernels[i] && choose(step.kernels[i]), (i) => `kernel ${step.kernels[i]?.id ?? i}: ${bytes(step.timeline[i])}`, bytes),
      bars("Memory by purpose", step.memory),
      bars("Memory by layer: parameters and optimizer", step.layers),
      step.activations ? bars("Memory by layer: activations at the peak", step.activations) : null,
    ),
    step.times ? layerTimes(step) : null,
    kernelTable(step, button),
    make("h4", {}, "Graph by layer"),
    make("p", { class: "quiet" }, step.times ? "A kernel of several layers stands at the one with most of its work." : "A kernel stands at the layer whose weights it writes or reads; `wholestep report --rebuild` places all of them."),
    byLayer(step, button),
    make("h4", {}, "Code"),
    code,
  );
}

function tiles(step) {
  const expected = step.kernels.every(({ seconds }) => typeof seconds === "number") ? step.kernels.reduce((sum, { seconds }) => sum + seconds, 0) : null;
  const sizes = Object.entries(step.sizes).map(([name, size]) => [name, formatted(size)]);
  const measured = step.step_seconds ? [["measured step", seconds(step.step_seconds)], ["waiting at barriers", seconds(step.waiting)]] : [];
  return [
    ...sizes, ["kernels", formatted(step.kernels.length + step.left_out)], ["operations", formatted(step.flops)], ["bytes moved", bytes(step.bytes)], ["peak memory", bytes(step.peak)],
    ...(expected === null ? [] : [[step.step_seconds ? `kernels by price, ${step.executors}` : "kernels by price, one thread", seconds(expected)]]), ...measured,
  ];
}

function bars(title, sizes) {
  const entries = Object.entries(sizes).sort((a, b) => b[1] - a[1]).slice(0, 24);
  const most = Math.max(1, ...entries.map(([, size]) => size));
  return make("figure", {},
    make("figcaption", {}, make("strong", {}, title)),
    make("div", { class: "bars" }, entries.flatMap(([name, size]) => [
      make("span", { class: "whole" }, name),
      make("span", { class: "bar" }, make("i", { "--share": (size / most).toFixed(4) })),
      make("span", {}, bytes(size)),
    ])));
}

function layerTimes(step) {
  const rows = Object.entries(step.times).map(([layer, times]) => [layer, ...["forward", "backward", "update"].map((phase) => seconds(times[phase])), `${(100 * times.share).toFixed(1)} %`]);
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Times by layer" }, tableOf(["Layer", "Forward", "Backward", "Update", "Share"], rows, "Measured times by layer"));
}

// Roofline: operations for each byte, and the speed that operations or bytes allow.
function kernelTable(step, button) {
  const measured = step.kernels.some((kernel) => kernel.measured !== undefined);
  const names = ["Kernel", "Computes", "Operations", "Bytes", "Op/B", "By price", "Bound", ...(measured ? ["Measured", "GFLOP/s", "GB/s", "Of price"] : [])];
  const rate = (work, time) => (time ? formatted(Number((1e-9 * work / time).toPrecision(3))) : NONE);
  const row = (k) => [
    k.name, formatted(k.flops), bytes(k.bytes), k.bytes ? formatted(Number((k.flops / k.bytes).toPrecision(3))) : NONE, seconds(k.seconds), k.bound ?? NONE,
    ...(measured ? [seconds(k.measured), rate(k.flops, k.measured), rate(k.bytes, k.measured), k.of_expected ? `${Math.round(100 * k.of_expected)} %` : NONE] : []),
  ];
  const slowest = [...step.kernels].sort((a, b) => (timeOf(b) ?? 0) - (timeOf(a) ?? 0)).slice(0, MOST_ROWS);
  const rest = step.kernels.length + step.left_out - slowest.length;
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Kernels" },
    make("table", { class: "kernels" },
      make("caption", {}, `Kernels, slowest first${rest ? `; ${formatted(rest)} more are not listed` : ""}`),
      make("thead", {}, make("tr", {}, names.map((name) => make("th", { scope: "col", class: name === "Computes" ? "text" : null }, name)))),
      make("tbody", {}, slowest.map((k) => make("tr", {},
        make("th", { scope: "row" }, button(k, `${k.id} ${k.kind}`)),
        row(k).map((cell, i) => make("td", i ? {} : { class: "text whole" }, cell)))))));
}

// Layers as folds, nested by their dotted paths; each kernel with the tensors that it reads and writes.
function byLayer(step, button) {
  const root = { kernels: [], children: new Map() };
  for (const kernel of step.kernels) {
    let node = root;
    const path = kernel.layer.startsWith("(") ? [kernel.layer] : kernel.layer.split(".");
    for (const part of path) {
      if (!node.children.has(part)) node.children.set(part, { kernels: [], children: new Map() });
      node = node.children.get(part);
    }
    node.kernels.push(kernel);
  }
  const all = (node) => [...node.kernels, ...[...node.children.values()].flatMap(all)];
  const fold = ([name, node], depth) => make("details", { class: "layer", open: depth === 0 && root.children.size <= 6 },
    make("summary", {}, `${name}: ${all(node).length} kernels, ${seconds(all(node).reduce((sum, k) => sum + (timeOf(k) ?? 0), 0))}`),
    make("ul", {}, node.kernels.map((k) => make("li", {}, button(k, `${k.id} ${k.kind}`), ` ${k.phase ?? ""} ${k.reads.join(", ")} → ${k.writes.join(", ")}`))),
    [...node.children].map((child) => fold(child, depth + 1)));
  return make("div", { class: "graph" }, [...root.children].map((child) => fold(child, 0)));
}

function kernelDetails(k, step) {
  return [
    make("p", {}, make("strong", {}, `kernel ${k.id}: ${k.name}`)),
    make("p", { class: "quiet" }, `${k.layer}${k.phase ? `, ${k.phase}` : ""}; ${formatted(k.flops)} operations, ${bytes(k.bytes)}; schedule: ${k.schedule || NONE}. Reads ${k.reads.join(", ") || "nothing"}; writes ${k.writes.join(", ") || "nothing"}.`),
    k.source ? make("pre", { class: "scroll", tabindex: "0", "aria-label": `Code of kernel ${k.id}` }, k.source)
      : make("p", { class: "quiet" }, `No code is generated for this kernel of ${step.target}, or it would make the page too large.`),
  ];
}
