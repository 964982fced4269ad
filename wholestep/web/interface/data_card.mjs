// The card of the data: the example or the user's files, what was read, and what did not fit.
import { DataError } from "./errors.mjs";
import { inputNames, selectRows, targetChoices } from "./dataset.mjs";
import { holdout } from "./holdout.mjs";
import { byId, fill, make, plural, showError, tableOf } from "./elements.mjs";
import { kindOf, readFiles, readTable, thumbnail } from "./files.mjs";

export class DataCard {
  // use: receives {train, validation}; restore: receives a dropped checkpoint; isTraining: the program is busy
  constructor(spec, example, { use, restore, isTraining }) {
    Object.assign(this, { spec, example, use, restore, isTraining, files: null, errors: "data-error" });
    byId("accepts").textContent = acceptsText(spec);
    byId("files").accept = [spec.task === "other" ? null : ".csv,.tsv", ".npy", spec.image ? "image/*" : null].filter(Boolean).join();
    fill(byId("file-help"), helpOf(spec).map((text) => make("li", {}, text)));
    byId("held").value = 100 * spec.settings.validation;
    byId("files").addEventListener("change", ({ target }) => {
      this.open([...target.files]);
      target.value = "";
    });
    byId("held").addEventListener("change", () => this.files && this.#read());
    byId("example").addEventListener("click", () => this.useExample());
  }

  async useExample() {
    this.files = null;
    byId("example").hidden = byId("file-options").hidden = true;
    byId("held").disabled = true;
    const { train, validation } = this.example;
    const part = this.spec.example.rows < this.spec.example.of ? ` (the first ${this.spec.example.rows.toLocaleString("en")} of ${this.spec.example.of.toLocaleString("en")} rows of the training data)` : "";
    await this.#give(train, validation, `Example data${part}`);
  }

  // Read the files that a user chose.
  async open(files) {
    if (!files.length) return;
    try {
      if (this.isTraining()) throw new DataError("the model is being trained on other data. Stop it, then drop the files again.");
      if (kindOf(this.spec, files) === "checkpoint") return await this.restore(files[0]);
      this.files = files;
      byId("held").disabled = false;
      await this.#options();
    } catch (error) {
      return showError("data-error", error);
    }
    await this.#read();
  }

  // Questions about the files that have no answer in them.
  async #options() {
    const { spec, files } = this;
    const place = byId("file-options");
    const kind = kindOf(spec, files);
    fill(place);
    if (kind === "csv") {
      const header = make("select", { id: "header", change: () => this.#options().then(() => this.#read()) },
        [["", "as it looks"], ["true", "names of columns"], ["false", "data"]].map(([value, text]) => make("option", { value }, text)));
      header.value = this.header ?? "";
      header.addEventListener("change", () => (this.header = header.value));
      place.append(make("label", { class: "field" }, "The first line is", header));
      const choices = await readTable(files[0], this.#header).then((frame) => targetChoices(spec, frame), () => []);
      if (choices.length > 1) {
        const target = make("select", { id: "target", change: () => this.#read() }, choices.map((name) => make("option", {}, name)));
        place.append(make("label", { class: "field" }, "Column to predict", target));
      }
    }
    if (kind === "images") {
      place.append(make("label", { class: "check" }, make("input", { id: "invert", type: "checkbox", change: () => this.#read() }), "Invert brightness"));
    }
    place.hidden = !place.childElementCount;
  }

  get #header() {
    return { true: true, false: false }[this.header] ?? null;
  }

  async #read() {
    const { spec, files } = this;
    try {
      const options = { header: this.#header, target: byId("target")?.value, invert: byId("invert")?.checked };
      const data = await readFiles(spec, files, options);
      if (!data.hasTargets) {
        throw new DataError(
          `${files[0].name} has no targets, so nothing can be trained; expected ${targetText(spec)}. Add it, or predict these rows below.`,
        );
      }
      const [rows, held] = holdout(data.rows, Number(byId("held").value) / 100, spec.settings.seed);
      const notes = data.notes.length ? `; ${data.notes.join("; ")}` : "";
      await this.#give(selectRows(data, rows), held.length ? selectRows(data, held) : null, `${files.length > 1 ? plural(files.length, "file") : files[0].name}${notes}`);
      byId("example").hidden = !this.example;
    } catch (error) {
      showError("data-error", error);
      byId("example").hidden = !this.example;
    }
  }

  async #give(train, validation, name) {
    await this.use({ train, validation, isExample: !this.files });
    showError("data-error", null);
    const held = validation ? `, ${validation.rows.toLocaleString("en")} to validate` : ", none to validate";
    byId("data-status").textContent = `${name}: ${plural(train.rows, "row")} to train${held}.`;
    fill(byId("data-preview"), this.#preview(train));
  }

  #preview(train) {
    const { spec } = this;
    if (spec.image) {
      const { data } = train.inputs[inputNames(spec).predicted[0]];
      const count = Math.min(14, train.rows);
      const images = Array.from({ length: count }, (_, row) => thumbnail(spec, data, row));
      return [make("div", { class: "thumbnails", role: "img", "aria-label": `The first ${count} images` }, images)];
    }
    const preview = this.files ? null : spec.preview;
    return preview ? [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The first rows" }, tableOf(preview.names, preview.rows))] : [];
  }
}

const targetText = (spec) => (spec.target ? `a column '${spec.target}'` : "labels");

function acceptsText(spec) {
  const kinds = [spec.task === "other" ? null : "a CSV file", spec.image ? "images" : null, "or .npy arrays"].filter(Boolean);
  return `${kinds.join(", ")}`.replace(", or", kinds.length > 2 ? ", or" : " or").replace(/^or /, "");
}

function helpOf(spec) {
  const { predicted, targets } = inputNames(spec);
  const shape = (name) => {
    const input = spec.manifest.inputs.find((one) => one.name === name);
    return `${name} (${["rows", ...input.shape.slice(1)].join(", ")}), ${input.dtype}`;
  };
  const out = [];
  if (spec.encoding) {
    const names = [...spec.encoding.numbers, ...spec.encoding.dates, ...spec.encoding.categories, ...spec.encoding.words].map(({ name }) => name);
    out.push(`A CSV file with a line of names and the columns ${names.join(", ")}${spec.target ? `, and ${spec.target} to predict` : ""}. Empty cells, NA and ? are missing values.`);
  } else if (spec.task !== "other") {
    const width = spec.manifest.inputs.find((one) => one.name === predicted[0]).shape.slice(1).reduce((a, b) => a * b, 1);
    out.push(`A CSV file with ${width} columns of numbers and one column to predict.`);
  }
  out.push(`.npy arrays of NumPy, dropped together: ${[...predicted, ...targets].map(shape).join("; ")}.`);
  if (spec.image) {
    const [, height, width] = spec.image.shape;
    out.push(`Images of any size, which are scaled to ${width} × ${height} pixels. Their folders, or the beginnings of their names, are the labels: ${spec.classes?.[0] ?? 0}/1.png or ${spec.classes?.[0] ?? 0}_1.png.`);
  }
  out.push("A checkpoint (.safetensors) of this experiment.");
  return out;
}
