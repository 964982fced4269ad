// The worker with the program: questions, each with one answer, and reports in between.

export class Engine {
  constructor(code, report) {
    this.waiting = new Map();
    this.next = 0;
    this.worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    this.worker.onmessage = ({ data }) => {
      if (data.kind !== "answer") return report(data);
      const { resolve, reject } = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      if (data.error === undefined) return resolve(data.value);
      const error = new Error(data.error);
      if (data.isData) error.name = "DataError";
      return reject(error);
    };
    this.worker.onerror = (event) => {
      const error = new Error(event.message ?? "the worker could not start");
      for (const { reject } of this.waiting.values()) reject(error);
      this.waiting.clear();
    };
  }

  ask(kind, message = {}) {
    return new Promise((resolve, reject) => {
      const id = this.next++;
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, kind, ...message });
    });
  }
}
