// Starts the page, or, in the worker, the program.
import { DataError } from "./errors.mjs";
import { readSafetensors, valuesOf } from "./safetensors.mjs";
import { serve } from "./trainer.mjs";
import { Step } from "./step.mjs";
import { byId, download, fill, make, plural, showError } from "./elements.mjs";
import { DataCard } from "./data_card.mjs";
import { droppedFiles } from "./files.mjs";
import { Engine } from "./engine.mjs";
import { PredictCard } from "./predict_card.mjs";
import { TrainingCard } from "./training_card.mjs";

// The bytes of an embedded file: base64, compressed by gzip.
async function embedded(id) {
  const text = byId(id).textContent;
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The embedded rows: arrays called train/<input> and validation/<input>.
function exampleOf(file) {
  const parts = { train: {}, validation: {} };
  for (const [name, tensor] of readSafetensors("the example", file).tensors) {
    const at = name.indexOf("/");
    parts[name.slice(0, at)][name.slice(at + 1)] = { data: valuesOf(tensor), shape: tensor.shape };
  }
  const part = (inputs) => {
    const [first] = Object.values(inputs);
    return first ? { inputs, rows: first.shape[0], notes: [], hasTargets: true } : null;
  };
  return { train: part(parts.train), validation: part(parts.validation) };
}

async function startPage() {
  const spec = JSON.parse(byId("spec").textContent);
  fill(byId("facts"), spec.facts.map((fact) => make("li", {}, fact)));
  byId("python").textContent = spec.python;
  let training;
  const engine = new Engine(byId("code").textContent, (message) => training.report(message));
  training = new TrainingCard(spec, engine);
  const [module, weights, file] = await Promise.all(["module", "weights", "example-data"].map(embedded));
  await engine.ask("start", { module, weights, spec });
  const restore = (chosen) => openCheckpoint(chosen, engine, training);
  const data = new DataCard(spec, exampleOf(file), {
    use: async (parts) => training.newData(await engine.ask("data", parts)),
    restore,
    isTraining: () => training.running,
  });
  const predictions = new PredictCard(spec, engine);
  wireKeep(spec, engine, training, restore);
  wireDrop(data, predictions);
  await data.useExample();
  document.documentElement.dataset.ready = "true";
}

function wireKeep(spec, engine, training, restore) {
  byId("save").addEventListener("click", async () => {
    try {
      const bytes = await engine.ask("save");
      download(`${spec.name}.safetensors`, bytes, "application/octet-stream");
      byId("keep-status").textContent = `${spec.name}.safetensors, ${plural(bytes.length, "byte")}: the state after ${plural(training.epoch, "epoch")}.`;
    } catch (error) {
      showError("keep-error", error);
    }
  });
  byId("restore").addEventListener("change", ({ target }) => {
    if (target.files.length) restore(target.files[0]);
    target.value = "";
  });
  byId("save-history").addEventListener("click", () => download(`${spec.name}.csv`, training.csv(), "text/csv"));
}

async function openCheckpoint(chosen, engine, training) {
  try {
    const file = new Uint8Array(await chosen.arrayBuffer());
    const { epoch, position, history, scalars, measured } = await engine.ask("restore", { path: chosen.name, file });
    training.resume(epoch, history.map(({ epoch: number, logs }) => ({ epoch: number, ...logs })), position, measured);
    training.setScalars(scalars);
    byId("keep-status").textContent = `${chosen.name} is loaded: ${plural(epoch, "epoch")} done.`;
    showError("keep-error", null);
  } catch (error) {
    showError("keep-error", error);
  }
}

// Files may be dropped anywhere on the page: on the card of predictions they are new rows, elsewhere the data.
function wireDrop(data, predictions) {
  let depth = 0;
  const marked = (change) => {
    depth = Math.max(0, depth + change);
    document.body.classList.toggle("dropping", depth > 0);
  };
  addEventListener("dragenter", () => marked(1));
  addEventListener("dragleave", () => marked(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", async (event) => {
    event.preventDefault();
    marked(-depth);
    const card = event.target.closest("#predict-card") ? predictions : data;
    try {
      await card.open(await droppedFiles(event.dataTransfer));
    } catch (error) {
      showError(card.errors, error);
    }
  });
}

if (typeof document === "undefined") {
  serve(self, (module, manifest) => Step.load(module, manifest));
} else {
  startPage().catch((error) => {
    const old = typeof DecompressionStream === "undefined" || typeof WebAssembly === "undefined";
    showError("data-error", old ? new DataError("this browser is too old for this page; it needs WebAssembly with SIMD. Update the browser.") : error);
  });
}
