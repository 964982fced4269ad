// The card of predictions: a form for one row of a table, a pad to draw on, files of new rows.
import { Encoding } from "./encoding.mjs";
import { columnOf } from "./csv.mjs";
import { Frame } from "./frame.mjs";
import { datasetOfFrame, inputNames, scaled } from "./dataset.mjs";
import { softmax } from "./measures.mjs";
import { byId, download, fill, formatted, make, plural, showError, tableOf } from "./elements.mjs";
import { pixelsOf, readFiles, thumbnail } from "./files.mjs";

const SHOWN = 50;

export class PredictCard {
  constructor(spec, engine) {
    Object.assign(this, { spec, engine, errors: "predict-error" });
    const parts = [];
    if (spec.encoding) parts.push(this.#form());
    if (spec.image && spec.image.shape[0] === 1) parts.push(this.#pad());
    parts.push(make("div", { class: "row" },
      make("label", { class: "button" }, make("input", { id: "predict-files", type: "file", multiple: true, class: "visually-hidden", change: ({ target }) => this.#files(target) }), "Predict rows of files"), make("span", { class: "quiet" }, "or drop them here")));
    fill(byId("predict"), parts);
  }

  async #ask(inputs, rows) {
    showError("predict-error", null);
    return this.engine.ask("predict", { inputs, rows });
  }

  // -- one row of a table ------------------------------------------------------------------------------------------

  #form() {
    const { spec } = this;
    const sample = new Map((spec.preview?.names ?? []).map((name, i) => [name, spec.preview.rows[0][i]]));
    const holds = new Map(spec.encoding.summary.map((column) => [column.name, column.holds]));
    const fields = new Encoding(spec.encoding).parts.map((part) => make("label", { class: "field" }, part.name, fieldOf(part, sample.get(part.name), holds.get(part.name))));
    const submit = (event) => {
      event.preventDefault();
      this.#row(event.target).catch((error) => showError("predict-error", error));
    };
    return make("form", { id: "row", submit }, make("div", { class: "fields" }, fields), make("div", { class: "row" }, make("button", { class: "primary" }, "Predict this row")));
  }

  async #row(form) {
    const cells = [...new FormData(form)];
    const frame = new Frame(new Map(cells.map(([name, cell]) => [name, columnOf([cell])])));
    const { inputs } = datasetOfFrame(this.spec, frame, null);
    const scores = await this.#ask(inputs, 1);
    fill(byId("predictions"), this.#answer(scores));
  }

  // -- drawing -----------------------------------------------------------------------------------------------------

  #pad() {
    const canvas = make("canvas", { id: "pad", width: 220, height: 220, role: "img", "aria-label": "Pad to draw on with a pointer" });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const clear = () => {
      context.fillStyle = "black";
      context.fillRect(0, 0, canvas.width, canvas.height);
      fill(answer, make("p", { class: "quiet" }, "Draw here, white on black, as in the training images."));
    };
    const answer = make("div", { id: "pad-answer", "aria-live": "polite" });
    Object.assign(context, { lineWidth: 20, lineCap: "round", lineJoin: "round", strokeStyle: "white" });
    let last = null;
    const at = ({ offsetX, offsetY }) => [(offsetX * canvas.width) / canvas.clientWidth, (offsetY * canvas.height) / canvas.clientHeight];
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      last = at(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!last) return;
      const next = at(event);
      context.beginPath();
      context.moveTo(...last);
      context.lineTo(...next);
      context.stroke();
      last = next;
    });
    const end = () => {
      if (last) this.#drawing(canvas).catch((error) => showError("predict-error", error));
      last = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    clear();
    const button = make("div", { class: "row" }, make("button", { type: "button", click: clear }, "Clear"));
    return make("div", { class: "pad" }, make("div", {}, canvas, button), answer);
  }

  // The drawing, cut out and centred as the training images are.
  async #drawing(canvas) {
    const { spec } = this;
    const [, height, width] = spec.image.shape;
    const box = inkBox(canvas);
    if (!box) return;
    const small = make("canvas", { width, height });
    const context = small.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    const scale = (Math.min(width, height) * spec.image.extent) / Math.max(box.width, box.height);
    const [w, h] = [box.width * scale, box.height * scale];
    context.drawImage(canvas, box.x, box.y, box.width, box.height, (width - w) / 2, (height - h) / 2, w, h);
    const { data } = scaled(spec.image, { data: pixelsOf(spec, context, false) });
    const [name] = inputNames(spec).predicted;
    const scores = await this.#ask({ [name]: { data, shape: [1, ...spec.manifest.inputs.find((one) => one.name === name).shape.slice(1)] } }, 1);
    fill(byId("pad-answer"), this.#answer(scores));
  }

  // -- files -------------------------------------------------------------------------------------------------------

  #files(input) {
    const files = [...input.files];
    input.value = "";
    return this.open(files);
  }

  // Predict the rows of files.
  async open(files) {
    if (!files.length) return;
    try {
      const data = await readFiles(this.spec, files, { invert: byId("invert")?.checked });
      this.#list(data, await this.#ask(data.inputs, data.rows));
    } catch (error) {
      showError("predict-error", error);
    }
  }

  #list(data, scores) {
    const { spec } = this;
    const width = scores.length / data.rows;
    const rows = Array.from({ length: data.rows }, (_, row) => scores.slice(row * width, (row + 1) * width));
    const labels = rows.map((row) => this.#label(row));
    const exact = rows.map((row) => this.#label(row, (value) => String(Number(value.toPrecision(9)))));
    const csv = () => download("predictions.csv", ["prediction", ...exact.map(quoted)].join("\n") + "\n", "text/csv");
    const button = make("div", { class: "row" }, make("button", { type: "button", id: "save-predictions", click: csv }, "Download predictions"));
    const more = data.rows > SHOWN ? `the first ${SHOWN} of ${plural(data.rows, "row")}` : plural(data.rows, "row");
    let shown;
    if (spec.image) {
      const { data: pixels } = data.inputs[inputNames(spec).predicted[0]];
      shown = make("div", { class: "predicted" }, labels.slice(0, SHOWN).map((label, row) => make("figure", {}, thumbnail(spec, pixels, row), make("div", { "data-prediction": true }, label))));
    } else {
      const names = data.frame ? data.frame.names.slice(0, 5) : [];
      const cells = (row) => names.map((name) => shownCell(data.frame.column(name), row));
      shown = tableOf(["prediction", ...names], labels.slice(0, SHOWN).map((label, row) => [label, ...cells(row)]), more);
    }
    fill(byId("predictions"), button, shown);
  }

  // -- answers -----------------------------------------------------------------------------------------------------

  // The prediction of one row in a word, or in numbers as `write` writes them.
  #label(scores, write = formatted) {
    const { task, classes } = this.spec;
    if (task === "classes") return String(classes[scores.indexOf(Math.max(...scores))]);
    if (task === "answers") return String(classes[Number(scores[0] > 0)]);
    return [...scores].map(write).join(", ");
  }

  #answer(scores) {
    const { task, classes } = this.spec;
    const answer = make("p", { class: "answer", id: "answer" }, this.#label(scores));
    if (task !== "classes" && task !== "answers") return [answer];
    const shares = task === "answers" ? [1 / (1 + Math.exp(scores[0])), 1 / (1 + Math.exp(-scores[0]))] : softmax(scores);
    const best = shares.map((share, i) => [share, classes[i]]).sort((a, b) => b[0] - a[0]).slice(0, 10);
    return [answer, make("div", { class: "bars" }, best.flatMap(([share, name]) => [
      make("span", {}, name), make("span", { class: "bar" }, make("i", { "--share": share.toFixed(4) })), make("span", {}, `${(100 * share).toFixed(1)} %`),
    ]))];
  }
}

const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

function shownCell(column, row) {
  if (column.missing[row]) return "–";
  const value = column.values[row];
  return column.kind === "date" ? new Date(value.days * 86_400_000).toISOString().slice(0, 10) : typeof value === "boolean" ? String(value) : value;
}

// A field for a column, with the value of an example row.
function fieldOf(part, value = "", holds = "") {
  const common = { name: part.name };
  if (holds === "bool") part = { ...part, mean: undefined, values: [true, false] };
  if (part.mean !== undefined && part.type === "number") {
    return make("input", { ...common, type: "number", step: "any", inputmode: "decimal", value: value ?? "", placeholder: part.gaps ? "missing" : null });
  }
  if (part.length !== undefined) return make("input", { ...common, type: "text", value: value ?? "" });
  if (part.values && part.values.length <= 60) {
    const names = part.values.map((one) => (typeof one === "boolean" ? String(one) : one));
    const select = make("select", common, [...(part.gaps ? [""] : []), ...names].map((one) => make("option", { value: one }, one === "" ? "(missing)" : one)));
    if (value !== null && value !== undefined) select.value = String(value);
    return select;
  }
  return make("input", { ...common, type: "text", value: value ?? "", placeholder: part.type === "date" ? "2024-03-31" : null });
}

// The smallest box around everything that was drawn.
function inkBox(canvas) {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  let [left, top, right, bottom] = [width, height, -1, -1];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (data[4 * (y * width + x)] < 64) continue;
      [left, right] = [Math.min(left, x), Math.max(right, x)];
      [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
    }
  }
  return right < 0 ? null : { x: left, y: top, width: right - left + 1, height: bottom - top + 1 };
}
