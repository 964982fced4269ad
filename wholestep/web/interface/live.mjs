// Asks the board that served the page which runs there are, and for what is new in those that are shown.

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the board answered ${answer.status}`);
  return answer.json();
}

const query = (values) => new URLSearchParams(values).toString();

export const askForStep = (name, plan) => ask(`step.json?${query({ name, plan })}`);

// Every `every` milliseconds: onList(runs), then onRun(name, description) of the wanted runs that changed, then onRound(error).
export function follow({ every, wanted, onList, onRun, onRound }) {
  const stamps = new Map();
  let timer = null, busy = false, again = false;
  async function round() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    clearTimeout(timer);
    let problem = null;
    try {
      const runs = await ask("runs.json");
      onList(runs.map(({ name }) => name));
      for (const { name, stamp } of runs) {
        if (!wanted(name) || stamps.get(name) === stamp) continue;
        onRun(name, await ask(`run.json?${query({ name })}`));
        stamps.set(name, stamp);
      }
    } catch (error) {
      problem = error;
    }
    busy = false;
    onRound(problem);
    timer = setTimeout(round, again ? 0 : every);
    again = false;
  }
  round();
  return round;
}
