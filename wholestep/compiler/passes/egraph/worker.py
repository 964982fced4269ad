"""The worker process: the only code that meets egglog.  Run as a script, so that it starts without our package.

It reads one JSON request per line and writes one JSON answer per line, until its input ends:

    request  {"program": text, "terms": [[head, [children], [slots]], ...], "equal": [[i, j], ...],
              "own": n (the first n terms are values of the program), "tables": {name: [children, kinds]},
              "certificates": {name: [children, kinds]}, "rulesets": {rule: ruleset},
              "rounds": n, "nodes": n, "grown": n}
    answer   {"nodes": {name: rows}, "certificates": {name: rows}, "matches": {rule: n}, "rounds": n,
              "stopped": "saturated" | "rounds" | "grown" | "nodes", "paused": {rule: round}, "seconds": {part: s}}
             or {"error": text}

A row is children, then slots, then, of an e-node, its class; children and classes are numbers of this process.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

MEMORY = 4 << 30  # bytes of address space
LARGE_SHARE = 0.05  # of a round's matches: a rule with more is set aside when the e-graph has grown too much


def load_bindings(folder: str) -> Any:
    """egglog's compiled module alone: its Python front end takes ten times as long to import and is not used."""
    (path,) = (p for p in Path(folder).glob("bindings.*") if p.suffix != ".pyi")
    spec = importlib.util.spec_from_file_location("egglog.bindings", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Saturation:
    """One request, from terms to rows."""

    def __init__(self, bindings: Any, request: dict[str, Any]) -> None:
        self.b, self.request = bindings, request
        self.egraph = bindings.EGraph()
        self.seconds: dict[str, float] = {}
        self.matches: dict[str, int] = {}
        self.rulesets: dict[str, str] = dict(request["rulesets"])  # of the rules that are not set aside
        self.paused: dict[str, int] = {}

    def answer(self) -> dict[str, Any]:
        self.timed("rules", self.declare)
        self.timed("insert", self.insert)
        rounds, stopped = self.timed("saturate", self.saturate)
        tables = self.timed("read", self.read)
        told = {"rounds": rounds, "stopped": stopped, "paused": self.paused, "seconds": self.seconds}
        return {**tables, "matches": self.matches, **told}

    def timed(self, part: str, work: Any) -> Any:
        begun = time.perf_counter()
        result = work()
        self.seconds[part] = time.perf_counter() - begun
        return result

    def declare(self) -> None:
        """In short pieces: the time to parse one text grows with the square of its length."""
        lines = self.request["program"].splitlines()
        for start in range(0, len(lines), 8):
            self.run_text("\n".join(lines[start : start + 8]))

    def run_text(self, text: str) -> Any:
        return self.egraph.run_program(*self.egraph.parse_program(text))

    def insert(self) -> None:
        """All terms as local lets of one rule without conditions: the cheapest way in."""
        b, span = self.b, self.b.PanicSpan()
        actions = []
        kinds = {name: kinds for name, (_, kinds) in self.request["tables"].items()}
        literal = {"i64": b.Int, "f64": b.Float}
        one = b.Lit(span, b.Float(1.0))
        for i, (head, children, slots) in enumerate(self.request["terms"]):
            numbers = [b.Lit(span, literal[k](s)) for k, s in zip(kinds[head], slots, strict=True)]
            call = b.Call(span, head, [*(b.Var(span, f"n{c}") for c in children), *numbers])
            actions.append(b.Let(span, f"n{i}", call))
            actions.append(b.Set(span, "type_of", [b.Var(span, f"n{i}")], numbers[-1]))
            if i < self.request["own"]:
                actions += [b.Set(span, f, [b.Var(span, f"n{i}")], one) for f in ("most_above", "most_below")]
        for left, right in self.request["equal"]:
            actions.append(b.Union(span, b.Var(span, f"n{left}"), b.Var(span, f"n{right}")))
        self.run_text("(ruleset insert)")
        self.egraph.run_program(b.RuleCommand(b.Rule(span, actions, [], "insert", "insert")))
        self.run_text("(run insert 1)")

    def saturate(self) -> tuple[int, str]:
        if not self.rulesets:
            return 0, "saturated"
        run_once, grown = self.combined("all"), self.request["grown"]
        for done in range(1, self.request["rounds"] + 1):
            (output,) = self.egraph.run_program(*run_once)
            counts = output.report.num_matches_per_rule
            for rule, count in counts.items():
                self.matches[rule] = self.matches.get(rule, 0) + count
            if not output.report.updated:
                return done - 1, "saturated"
            size = self.size()
            if size > self.request["nodes"]:
                return done, "nodes"
            if size > grown:
                if self.paused and size > 2 * self.request["grown"]:
                    return done, "grown"
                self.pause(counts, done)
                if not self.rulesets:
                    return done, "saturated"
                run_once, grown = self.combined(f"without{done}"), size + size // 4
        return self.request["rounds"], "rounds"

    def combined(self, name: str) -> Any:
        """One round of all rules that are not set aside."""
        self.run_text(f"(unstable-combined-ruleset {name} {' '.join(self.rulesets.values())})")
        return self.egraph.parse_program(f"(run {name} 1)")

    def pause(self, counts: dict[str, int], done: int) -> None:
        """Set aside the rules with a large share of the last round's matches."""
        total = sum(counts.values())
        for rule, count in sorted(counts.items()):
            if count > LARGE_SHARE * total and rule in self.rulesets:
                del self.rulesets[rule]
                self.paused[rule] = done

    def size(self) -> int:
        (output,) = self.run_text("(print-size)")
        return sum(n for name, n in output.sizes if name in self.request["tables"])

    def read(self) -> dict[str, Any]:
        functions = self.egraph.freeze().functions
        classes: dict[Any, int] = {}
        numbers: dict[Any, Any] = {}
        convert = {"i64": self.egraph.value_to_i64, "f64": self.egraph.value_to_f64}

        def row(values: Any, children: int, kinds: list[str]) -> list[Any]:
            out = [classes.setdefault(v, len(classes)) for v in values[:children]]
            for value, kind in zip(values[children:], kinds, strict=True):
                key = kind, value
                if key not in numbers:
                    numbers[key] = convert[kind](value)
                out.append(numbers[key])
            return out

        nodes: dict[str, Any] = {}
        for name, (children, kinds) in self.request["tables"].items():
            rows = functions[name].rows if name in functions else ()
            nodes[name] = [[*row(r.inputs, children, kinds), classes.setdefault(r.output, len(classes))] for r in rows]
        fired = {
            name: [row(r.inputs, children, kinds) for r in functions[name].rows]
            for name, (children, kinds) in self.request["certificates"].items()
            if name in functions
        }
        return {"nodes": nodes, "certificates": fired}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    bindings = load_bindings(sys.argv[1])
    for line in sys.stdin:
        try:
            answer = Saturation(bindings, json.loads(line)).answer()
        except BaseException as error:  # egglog's panics are no Exceptions
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
