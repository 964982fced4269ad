// An exported step in JavaScript: the block and the rows of data sets in the memory of its WebAssembly module.
// It runs in Node, in browsers and in workers; it makes no request.

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array, uint8: Uint8Array, bool: Uint8Array,
};
const PAGE = 65536;
const align = (size) => Math.ceil(size / 64) * 64;

export class Step {
  // Instantiate a module; `bytes` is the content of step.wasm, `manifest` the content of manifest.json.
  static async load(bytes, manifest) {
    const { instance } = await WebAssembly.instantiate(bytes, {});
    return new Step(instance.exports, manifest);
  }

  constructor(exports, manifest) {
    this.wasm = exports;
    this.manifest = manifest;
    this.end = align(exports.__heap_base.value);
    this.block = this.take(exports.ws_bytes());
    this.own = this.end; // data sets begin here
    this.rows = 0;
    this.data = []; // input and address of its arrays
    exports.ws_init(this.block);
    this.scalars = {
      get: (name) => exports.ws_get_scalar(this.block, this.#scalar(name)),
      set: (name, value) => this.#need(exports.ws_set_scalar(this.block, this.#scalar(name), value)),
    };
  }

  // The address of `size` more bytes; the memory grows where necessary, which replaces its buffer.
  take(size) {
    const address = this.end;
    this.end += align(size);
    const missing = this.end - this.wasm.memory.buffer.byteLength;
    if (missing > 0) this.wasm.memory.grow(Math.ceil(missing / PAGE));
    return address;
  }

  #need(result) {
    if (result >= 0) return result;
    const bytes = new Uint8Array(this.wasm.memory.buffer, this.wasm.ws_error(result));
    throw new Error(new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0))));
  }

  #scalar(name) {
    const index = this.manifest.scalars.findIndex((scalar) => scalar.name === name);
    if (index < 0) throw new Error(`there is no runtime scalar named ${name}`);
    return index;
  }

  #view(dtype, address, count) {
    return new ARRAYS[dtype](this.wasm.memory.buffer, address, count);
  }

  // Run `body` with memory of its own, which is released afterwards.
  #borrow(body) {
    const end = this.end;
    try {
      return body();
    } finally {
      this.end = end;
    }
  }

  #input(name) {
    const index = this.manifest.inputs.findIndex((input) => input.name === name);
    if (index < 0) throw new Error(`there is no input named ${name}`);
    return index;
  }

  // Copy an array into the memory and bind it; returns its address.
  #bind(name, array) {
    const index = this.#input(name);
    const { dtype } = this.manifest.inputs[index];
    if (!(array instanceof ARRAYS[dtype])) throw new Error(`the input ${name} takes a ${ARRAYS[dtype].name}`);
    const address = this.take(array.byteLength);
    this.#view(dtype, address, array.length).set(array);
    this.#need(this.wasm.ws_bind(this.block, index, address));
    return address;
  }

  // Copy a data set, typed arrays by input, into the memory; it replaces the one before.
  setData(arrays, rows) {
    this.end = this.own;
    this.rows = rows;
    this.data = Object.entries(arrays).map(([name, array]) => [this.#input(name), this.#bind(name, array)]);
  }

  // At most `steps` updates from row `position` of the epoch on; returns their losses.
  run({ batch = 0, shuffle = true, position = 0, steps = 1 } = {}) {
    return this.#borrow(() => {
      const losses = this.take(8 * Math.max(1, steps));
      const done = this.wasm.ws_run(this.block, this.rows, batch, shuffle ? 1 : 0, position, steps, losses);
      return this.#view("float64", losses, this.#need(done)).slice();
    });
  }

  #metrics(entry) {
    const values = this.manifest.metrics.map((metric, i) => [metric.name, this.wasm.ws_metric(this.block, entry, i)]);
    return Object.fromEntries(values);
  }

  // The metrics of the epoch so far.
  metrics() {
    return this.#metrics(0);
  }

  // The loss and the metrics of the data set.
  evaluate() {
    this.#need(this.wasm.ws_evaluate(this.block, this.rows));
    return { loss: this.wasm.ws_loss(this.block), metrics: this.#metrics(1) };
  }

  // The outputs of any number of rows: a typed array by output.
  predict(arrays, rows) {
    const { batch } = this.manifest.programs.predict;
    const parts = this.manifest.outputs.map(() => []);
    for (let first = 0; first < rows; first += batch) {
      this.#borrow(() => this.#predictPart(arrays, rows, first, Math.min(batch, rows - first), parts));
    }
    for (const [input, address] of this.data) this.wasm.ws_bind(this.block, input, address);
    return this.#joined(parts);
  }

  #predictPart(arrays, rows, first, count, parts) {
    for (const name of this.manifest.programs.predict.inputs) {
      const width = this.manifest.inputs[this.#input(name)].rows ? arrays[name].length / rows : 0;
      this.#bind(name, width ? arrays[name].subarray(first * width, (first + count) * width) : arrays[name]);
    }
    this.#need(this.wasm.ws_predict(this.block, count));
    this.manifest.outputs.forEach(({ dtype }, i) => {
      const bytes = this.wasm.ws_output_bytes(this.block, i);
      const to = this.take(bytes);
      this.#need(this.wasm.ws_read_output(this.block, i, to));
      parts[i].push(this.#view(dtype, to, bytes / ARRAYS[dtype].BYTES_PER_ELEMENT).slice());
    });
  }

  #joined(parts) {
    return Object.fromEntries(this.manifest.outputs.map(({ name, dtype }, i) => {
      const whole = new ARRAYS[dtype](parts[i].reduce((sum, part) => sum + part.length, 0));
      parts[i].reduce((at, part) => (whole.set(part, at), at + part.length), 0);
      return [name, whole];
    }));
  }

  // Read a safetensors file, a Uint8Array; returns how many of its tensors the step has.
  load(file) {
    return this.#borrow(() => {
      const address = this.take(file.length);
      this.#view("uint8", address, file.length).set(file);
      return this.#need(this.wasm.ws_load(this.block, address, file.length));
    });
  }

  save() {
    return this.#borrow(() => {
      const bytes = this.wasm.ws_checkpoint_bytes();
      const address = this.take(bytes);
      this.#need(this.wasm.ws_save(this.block, address));
      return this.#view("uint8", address, bytes).slice();
    });
  }

  get loss() { return this.wasm.ws_loss(this.block); }
  get steps() { return this.wasm.ws_counter(this.block, 0); }
  get epoch() { return this.wasm.ws_counter(this.block, 1); }
  get refused() { return this.wasm.ws_refused(this.block) !== 0; }
}
