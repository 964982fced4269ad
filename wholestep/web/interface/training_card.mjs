// The card of training: settings, buttons, progress, and what the worker reports.
import { DataError } from "./errors.mjs";
import { byId, fill, formatted, make, plural, showError, tableOf, titled } from "./elements.mjs";
import { curves, matrix, residuals } from "./charts.mjs";

const ERRORS = { r2: "R²", mae: "Mean abs. error" }; // of predicted numbers, beside the metrics of the experiment
const REDRAW = 100; // milliseconds between two drawings
const MOST_POINTS = 400; // of a curve
const MOST_ROWS = 100; // of the table of epochs

export class TrainingCard {
  constructor(spec, engine) {
    Object.assign(this, { spec, engine, history: [], epoch: 0, part: 0, base: 0, goal: 0, running: false, hasData: false });
    byId("epochs").value = spec.settings.epochs;
    this.#rate();
    this.#scalars();
    byId("start").addEventListener("click", () => this.train());
    byId("stop").addEventListener("click", () => this.engine.ask("stop"));
    byId("reset").addEventListener("click", () => this.reset());
    byId("log").addEventListener("change", () => this.draw());
    this.draw();
  }

  #rate() {
    const rate = byId("rate"), slider = byId("rate-slider");
    const start = this.spec.manifest.scalars.find(({ name }) => name === this.spec.rate)?.value;
    if (start === undefined || start <= 0) {
      rate.closest("label").hidden = slider.hidden = true;
      return;
    }
    const middle = Math.log10(start);
    [slider.min, slider.max] = [middle - 3, middle + 3];
    [rate.value, slider.value] = [Number(start.toPrecision(6)), middle];
    slider.addEventListener("input", () => (rate.value = Number((10 ** slider.value).toPrecision(2))));
    rate.addEventListener("input", () => rate.value > 0 && (slider.value = Math.log10(rate.value)));
  }

  #scalars() {
    const { rate, runLengths } = this.spec;
    const others = this.spec.manifest.scalars.filter(({ name }) => name !== rate && !(name in runLengths));
    byId("more").hidden = !others.length;
    fill(byId("scalars"), others.map(({ name, value }) => make("label", { class: "field" }, name.replace(/^(schedule\.)?optimizer\.(lr\.)?/, "").replaceAll(/[._]/g, " "),
      make("input", { type: "number", step: "any", inputmode: "decimal", "data-scalar": name, value: Number(value.toPrecision(7)) }))));
  }

  // The settings as runtime scalars of the program.
  get #values() {
    const inputs = [...document.querySelectorAll("[data-scalar]")].filter(({ value }) => value !== "");
    const values = Object.fromEntries(inputs.map((input) => [input.dataset.scalar, Number(input.value)]));
    const rate = byId("rate");
    if (rate.closest("label").hidden) return values;
    if (!(rate.value > 0)) throw new DataError(`the learning rate is ${rate.value || "empty"}; expected a number above 0, e.g. 0.001.`);
    return { ...values, [this.spec.rate]: Number(rate.value) };
  }

  setScalars(values) {
    for (const [name, value] of values) {
      const field = name === this.spec.rate ? byId("rate") : document.querySelector(`[data-scalar="${name}"]`);
      if (!field) continue;
      field.value = Number(value.toPrecision(7));
      field.dispatchEvent(new Event("input"));
    }
  }

  async train() {
    let scalars;
    try {
      scalars = this.#values;
    } catch (error) {
      return showError("train-error", error);
    }
    showError("train-error", null);
    // A finished run goes on for as many epochs again; a stopped one goes on to its end.
    if (!this.part && this.epoch >= this.goal) this.base = this.epoch;
    this.goal = Math.max(this.base + Math.max(1, Math.round(Number(byId("epochs").value) || 1)), this.epoch + 1);
    this.#state(true);
    byId("train-status").textContent = `Training to epoch ${this.goal}`;
    const failure = await this.#run(scalars);
    this.#show();
    this.#state(false);
    const done = this.epoch >= this.goal;
    byId("train-status").textContent = failure ? "" : done ? `Finished after epoch ${this.epoch}` : "Stopped";
    if (!done) byId("progress-text").textContent += " · stopped";
  }

  // The error that ended a run early, if one did.
  async #run(scalars) {
    try {
      const { epoch, position } = await this.engine.ask("train", { epochs: this.goal, scalars });
      [this.epoch, this.part] = [epoch, position];
      return null;
    } catch (error) {
      showError("train-error", error);
      [this.part, this.goal] = [0, this.epoch];
      return error;
    }
  }

  async reset() {
    const { scalars, measured } = await this.engine.ask("reset");
    this.setScalars(scalars);
    this.resume(0, [], 0, measured);
  }

  // Continue from a state: after so many epochs and rows of the next one, with this history and these measurements.
  resume(epoch, history, part, measured) {
    Object.assign(this, { epoch, history, part, base: epoch, goal: epoch + Number(part > 0) });
    byId("progress").value = 0;
    byId("progress-text").textContent = epoch ? `After epoch ${epoch}` : "";
    showError("train-error", null);
    this.#validation(measured);
    this.#state(false);
    this.draw();
  }

  // New data: the curves go on, and the numbers about validation are those of the new rows.
  newData(measured) {
    Object.assign(this, { hasData: true, part: 0, goal: this.epoch });
    this.#validation(measured);
    this.#state(false);
  }

  #validation(measured) {
    fill(byId("tiles"));
    fill(byId("picture"));
    this.measured(measured);
    if (measured.metrics) this.#tiles({ val_loss: measured.loss, ...prefixed(measured.metrics) });
  }

  report(message) {
    if (message.kind === "measured") return this.measured(message);
    this.#progress(message);
    if (!message.finished.length) return;
    this.history.push(...message.finished);
    this.epoch = this.history.at(-1).epoch + 1;
    this.timer ??= setTimeout(() => this.#show(), REDRAW);
  }

  // Draw what was reported since the last drawing.
  #show() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.history.length) this.#tiles(this.history.at(-1));
    this.draw();
  }

  #progress({ epoch, epochs, position, rows, loss, rate }) {
    const start = this.base;
    const left = ((epochs - epoch) * rows - position) / rate;
    byId("progress").value = (epoch - start + position / rows) / Math.max(1, epochs - start);
    byId("progress-text").textContent =
      `Epoch ${Math.min(epoch + 1, epochs)} of ${epochs} · loss ${formatted(loss)} · ${Math.round(rate).toLocaleString("en")} rows/s` +
      (left > 1 ? ` · ${duration(left)} left` : "");
  }

  #state(running) {
    this.running = running;
    byId("start").disabled = running || !this.hasData;
    byId("start").textContent = this.part > 0 || this.goal > this.epoch ? "Continue" : this.epoch > 0 ? "Train on" : "Train";
    byId("stop").disabled = !running;
    for (const id of ["save", "restore"]) byId(id).disabled = running;
    byId("reset").disabled = running || (this.epoch === 0 && this.part === 0);
    byId("save-history").disabled = !this.history.length;
    document.querySelectorAll("#files, #example").forEach((element) => (element.disabled = running));
    byId("held").disabled = running || byId("example").hidden;
  }

  #tiles(logs) {
    const shown = Object.entries(logs).filter(([name, value]) => name.startsWith("val_") && typeof value === "number");
    const rest = shown.length ? shown : Object.entries(logs).filter(([name]) => name !== "epoch");
    const errors = Object.entries(this.errors ?? {}).filter(([name]) => ERRORS[name] && !(`val_${name}` in logs));
    const tile = (title, name, value) => make("div", {}, make("dt", {}, title), make("dd", { "data-log": name }, formatted(value)));
    fill(byId("tiles"),
      rest.map(([name, value]) => tile(titled(name.replace(/^val_/, "")), name, value)),
      errors.map(([name, value]) => tile(ERRORS[name], name, value)));
  }

  measured({ counts, points, errors }) {
    const place = byId("picture");
    if (counts) fill(place, matrix(counts, this.spec.classes.map(String)));
    this.errors = errors;
    if (points) fill(place, residuals(points));
  }

  draw() {
    const names = Object.keys(this.history[0] ?? { loss: 0 }).filter((name) => name !== "epoch" && !name.startsWith("val_"));
    const every = Math.ceil(this.history.length / MOST_POINTS);
    const shown = this.history.filter((_, i) => (this.history.length - 1 - i) % every === 0);
    const points = (name) => shown.filter((row) => typeof row[name] === "number").map((row) => [row.epoch + 1, row[name]]);
    const charts = names.map((name) => {
      const both = [name, `val_${name}`].filter((one) => one === name || one in (this.history.at(-1) ?? {}));
      return curves(titled(name), both.map((one) => ({ name: one === name ? "training" : "validation", points: points(one) })), { log: name === "loss" && byId("log").checked });
    });
    fill(byId("charts"), charts);
    byId("numbers").hidden = !this.history.length;
    const columns = Object.keys(this.history.at(-1) ?? {});
    fill(byId("history"), this.history.length ? tableOf(columns.map(titled), this.history.slice(-MOST_ROWS).map((row) => columns.map((name) => (name === "epoch" ? row.epoch + 1 : row[name])))) : []);
  }

  // The history as CSV, as ws.callbacks.CSVLogger writes it.
  csv() {
    const columns = Object.keys(this.history.at(-1));
    return [columns.join(","), ...this.history.map((row) => columns.map((name) => row[name]).join(","))].join("\n") + "\n";
  }
}

const prefixed = (metrics) => Object.fromEntries(Object.entries(metrics).map(([name, value]) => [`val_${name}`, value]));

function duration(seconds) {
  if (seconds < 90) return plural(Math.round(seconds), "second");
  return seconds < 5400 ? plural(Math.round(seconds / 60), "minute") : plural(Math.round(seconds / 3600), "hour");
}
