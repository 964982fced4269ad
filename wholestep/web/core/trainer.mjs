// Training in a Web Worker: epochs in slices between which messages are read, so that a run can be stopped.
import { DataError } from "./errors.mjs";
import { inputNames } from "./dataset.mjs";
import { confusion, errorsOf, largestOf } from "./measures.mjs";
import { readSafetensors, writeSafetensors } from "./safetensors.mjs";

const SLICE = 40; // milliseconds between two reports
const PICTURE = 500; // milliseconds between two predictions of the validation rows
const MOST_POINTS = 2000; // of a residual plot

const arraysOf = (inputs, names = Object.keys(inputs)) => Object.fromEntries(names.map((name) => [name, inputs[name].data]));

export class Trainer {
  // step: the compiled program; post: receives messages for the page
  constructor(step, spec, post) {
    Object.assign(this, { step, spec, post });
    this.first = step.save();
    this.slice = 1; // updates between two reports
    this.reported = this.pictured = 0; // times of the last report and of the last predictions
    this.clear();
  }

  clear() {
    this.history = [];
    this.finished = []; // epochs that were not reported yet
    this.begin();
    this.running = false;
  }

  // Begin an epoch.
  begin() {
    this.position = 0;
    this.sum = 0;
    this.before = null; // the state at the start of the epoch
  }

  setData(train, validation, isExample) {
    Object.assign(this, { train, validation, isExample });
    this.begin();
    if (!train.hasTargets) throw new DataError("the training data has no targets. Give a file with labels.");
  }

  // Train until `epochs` epochs are done, or until `stop`.
  async run(epochs, scalars, breathe) {
    for (const [name, value] of Object.entries({ ...scalars, ...this.#lengths(epochs) })) this.step.scalars.set(name, value);
    this.running = true;
    const began = performance.now();
    let trained = 0;
    try {
      while (this.running && this.step.epoch < epochs) {
        trained += await this.#epoch(epochs, began, trained, breathe);
      }
    } finally {
      this.running = false;
      this.#report(epochs, trained, began);
      if (this.validation) this.post({ kind: "measured", ...this.measure() });
    }
  }

  // The numbers of schedules that last the whole run, in updates without those of a warm-up.
  #lengths(epochs) {
    const updates = epochs * Math.ceil(this.train.rows / this.spec.settings.batch);
    const { runLengths } = this.spec;
    return Object.fromEntries(Object.entries(runLengths).map(([name, warmup]) => [name, Math.max(1, updates - warmup)]));
  }

  // Report the position and the epochs since the last report.
  #report(epochs, trained, began) {
    const { position, train, finished } = this;
    const rate = trained / Math.max((performance.now() - began) / 1000, 1e-3);
    const loss = position ? this.sum / position : (this.history.at(-1)?.avg_loss ?? NaN);
    this.post({ kind: "progress", epoch: this.step.epoch, epochs, position, rows: train.rows, loss, rate, finished });
    this.finished = [];
    this.reported = performance.now();
  }

  stop() {
    this.running = false;
  }

  // One epoch, or what is left of it; the number of rows that were trained on.
  async #epoch(epochs, began, trained, breathe) {
    const { step, train } = this;
    const batch = this.spec.settings.batch, shuffle = this.spec.settings.shuffle, epoch = step.epoch;
    this.before ??= step.save();
    step.setData(arraysOf(train.inputs), train.rows);
    let done = 0;
    while (this.running && this.position < train.rows) {
      const start = performance.now();
      const losses = step.run({ batch, shuffle, position: this.position, steps: this.slice });
      const first = this.position;
      losses.forEach((loss, i) => (this.sum += loss * Math.min(batch, train.rows - first - i * batch)));
      this.position = Math.min(first + losses.length * batch, train.rows);
      done += this.position - first;
      if (step.refused || !Number.isFinite(this.sum)) this.#refuse(epoch, first / batch + losses.length);
      const time = performance.now() - start;
      const fitting = Math.round((losses.length * SLICE) / Math.max(time, 0.1));
      this.slice = Math.max(1, Math.min(fitting, 4 * this.slice));
      if (this.position >= train.rows) this.#end(epoch);
      if (performance.now() - this.reported >= SLICE) this.#report(epochs, trained + done, began);
      await breathe();
      if (step.epoch > epoch) break;
    }
    return done;
  }

  #end(epoch) {
    const loss = this.sum / this.train.rows;
    const logs = { loss, ...this.step.metrics() };
    if (this.validation) {
      const held = this.evaluate();
      for (const [name, value] of Object.entries({ loss: held.loss, ...held.metrics })) logs[`val_${name}`] = value;
    }
    const known = Object.fromEntries(Object.entries(logs).filter(([, value]) => Number.isFinite(value)));
    const steps = Math.ceil(this.train.rows / this.spec.settings.batch);
    this.history.push({ epoch, avg_loss: loss, steps, logs: known, partial: false });
    this.begin();
    this.finished.push({ epoch, ...known });
    if (this.validation && performance.now() - this.pictured >= PICTURE) {
      this.post({ kind: "measured", ...this.measure() });
      this.pictured = performance.now();
    }
  }

  #refuse(epoch, updates) {
    const { rate } = this.spec;
    const used = rate ? `, with learning rate ${this.step.scalars.get(rate)}` : "";
    this.step.load(this.before);
    this.begin();
    throw new DataError(
      `the loss is not finite after update ${updates} of epoch ${epoch + 1}${used}; the weights of the ` +
        "start of the epoch were restored. Choose a smaller learning rate, or look for extreme values in the data.",
    );
  }

  // The loss and the metrics of the validation rows.
  evaluate() {
    this.step.setData(arraysOf(this.validation.inputs), this.validation.rows);
    return this.step.evaluate();
  }

  // What the page draws about the validation rows: a confusion matrix, or predictions beside actual values.
  measure() {
    const { classes, task } = this.spec;
    if (task === "other") return {};
    const { inputs, rows } = this.validation;
    const actual = inputs[inputNames(this.spec).targets[0]].data;
    const scores = this.predict(inputs, rows);
    if (task === "numbers") {
      const every = Math.ceil(actual.length / MOST_POINTS);
      const points = Array.from(actual, (value, i) => [value, scores[i]]).filter((_, i) => i % every === 0);
      return { errors: errorsOf(Array.from(actual), scores), points };
    }
    const predicted = task === "answers" ? Array.from(scores, (score) => Number(score > 0)) : largestOf(scores, classes.length);
    const count = task === "answers" ? 2 : classes.length;
    return { counts: confusion(Array.from(actual, Math.round), predicted, count) };
  }

  // The model's first output for rows of inputs.
  predict(inputs, rows) {
    const outputs = this.step.predict(arraysOf(inputs, inputNames(this.spec).predicted), rows);
    return Float64Array.from(Object.values(outputs)[0], Number);
  }

  // A checkpoint: the states of the program, and in its header what Python needs to continue the run.
  save() {
    const { tensors } = readSafetensors("the state", this.step.save());
    const { batch } = this.spec.settings;
    const { data, ...identity } = this.spec.identity;
    const rows = this.isExample ? this.position : 0; // a position in other data means nothing to Python
    const position = { epoch: this.step.epoch, step: rows / batch, loss_sum: rows ? this.sum : 0, rows };
    const run = { position, history: { stopped_by: "", epochs: this.history } };
    return writeSafetensors(tensors, {
      ...this.spec.metadata,
      "wholestep.run": JSON.stringify(run),
      "wholestep.identity": JSON.stringify({ ...identity, data: this.isExample ? data : {} }),
    });
  }

  restore(path, file) {
    const { metadata } = readSafetensors(path, file);
    let why = "it has none of its arrays";
    try {
      if (this.step.load(file) > 0) why = "";
    } catch (error) {
      why = error.message;
    }
    if (why) throw new DataError(`${path} does not fit this model: ${why}. Open a checkpoint of this experiment.`);
    const { history, position } = JSON.parse(metadata["wholestep.run"] ?? "{}");
    this.clear();
    this.history = history?.epochs ?? [];
    if (position?.rows < this.train.rows) [this.position, this.sum] = [position.rows, position.loss_sum];
  }

  get scalars() {
    return this.spec.manifest.scalars.map(({ name }) => [name, this.step.scalars.get(name)]);
  }

  // The numbers of the validation rows and their picture; nothing without such rows.
  get measured() {
    return this.validation ? { ...this.evaluate(), ...this.measure() } : {};
  }

  // Back to the weights that the page came with.
  reset() {
    this.step.load(this.first);
    this.clear();
  }
}

// Answer the messages of the page, in a worker.
export function serve(scope, loadStep) {
  const post = (message, transfer = []) => scope.postMessage(message, transfer);
  const channel = new MessageChannel();
  const breathe = () => new Promise((resolve) => {
    channel.port1.onmessage = resolve;
    channel.port2.postMessage(null);
  });
  let trainer;
  const handlers = {
    async start({ module, weights, spec }) {
      const step = await loadStep(module, spec.manifest);
      step.load(weights);
      trainer = new Trainer(step, spec, post);
    },
    data: ({ train, validation, isExample }) => {
      trainer.setData(train, validation, isExample);
      return trainer.measured;
    },
    train: async ({ epochs, scalars }) => {
      await trainer.run(epochs, scalars, breathe);
      return { epoch: trainer.step.epoch, position: trainer.position };
    },
    stop: () => trainer.stop(),
    predict: ({ inputs, rows }) => trainer.predict(inputs, rows),
    save: () => trainer.save(),
    restore: ({ path, file }) => {
      trainer.restore(path, file);
      return { epoch: trainer.step.epoch, position: trainer.position, history: trainer.history, scalars: trainer.scalars, measured: trainer.measured };
    },
    reset: () => {
      trainer.reset();
      return { scalars: trainer.scalars, measured: trainer.measured };
    },
  };
  scope.onmessage = async ({ data: { id, kind, ...message } }) => {
    try {
      post({ kind: "answer", id, value: await handlers[kind](message) });
    } catch (error) {
      post({ kind: "answer", id, error: error.message, isData: error.name === "DataError" });
    }
  };
}
