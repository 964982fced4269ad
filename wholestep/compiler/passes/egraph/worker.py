"""The worker process of equality saturation: the only code that calls egglog.  A script that imports no other module of
the package, so that it starts fast.

It reads JSON lines and writes one JSON answer per request, until its input ends or the idle timeout expires:

    laws     {"common": [line, ...], "laws": {name: [line, ...]}}, the first line: egglog texts that requests share
    request  {"laws": [name, ...], "program": [line, ...] (this request's own),
              "terms": [[head, [children], [slots]], ...], "equal": [[i, j], ...],
              "own": n (the first n terms are values of the program), "tables": {name: [children, kinds]},
              "certificates": {name: [children, kinds]}, "rulesets": {rule: ruleset},
              "rounds": n, "nodes": n, "grown": n}
    answer   {"nodes": {name: rows}, "certificates": {name: rows}, "matches": {rule: n}, "rounds": n,
              "stopped": "saturated" | "rounds" | "grown" | "nodes", "paused": {rule: round}, "seconds": {part: s}}
             or {"error": text}

A row holds the children, then the slots, then, for an e-node, its e-class; e-classes have the numbers of this process.
Declaring the laws takes longer than saturating most programs, so each is declared once: on the first request that needs
it, or while the process is idle.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import select
import sys
import time
from pathlib import Path
from typing import Any

MEMORY = 4 << 30  # bytes of address space
IDLE = 20.0  # seconds without a request after which the process ends
LARGE_SHARE = 0.05  # share of a round's matches: a rule with more is disabled when the e-graph has grown too much


def load_bindings(folder: str) -> Any:
    """Load egglog's compiled module alone: its Python front end takes ten times as long to import."""
    (path,) = (p for p in Path(folder).glob("bindings.*") if p.suffix != ".pyi")
    spec = importlib.util.spec_from_file_location("egglog.bindings", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Laws:
    """An e-graph with laws and no terms; each request works on top of it, between push and pop."""

    def __init__(self, bindings: Any, common: list[str], laws: dict[str, list[str]]) -> None:
        self.bindings, self.common, self.laws = bindings, common, laws
        self.restart()

    def restart(self) -> None:
        self.egraph = self.bindings.EGraph()
        self.undeclared = dict(self.laws)  # not declared yet
        declare(self.egraph, self.common)

    def declare_next(self) -> None:
        name = next(iter(self.undeclared))
        declare(self.egraph, self.undeclared.pop(name))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            for name in request["laws"]:
                declare(self.egraph, self.undeclared.pop(name, []))
            run_text(self.egraph, "(push)")
            declare(self.egraph, request["program"])
            seconds = {"rules": time.perf_counter() - start}
            answer = Saturation(self.bindings, self.egraph, request, seconds).answer()
            run_text(self.egraph, "(pop)")
        except BaseException as error:  # egglog's panics do not derive from Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            self.restart()
            return {"error": f"{type(error).__name__}: {error}"}
        return answer


def declare(egraph: Any, lines: list[str]) -> None:
    """Run lines in chunks of 8: egglog's parser takes time quadratic in the length of a text."""
    for start in range(0, len(lines), 8):
        run_text(egraph, "\n".join(lines[start : start + 8]))


def run_text(egraph: Any, text: str) -> Any:
    return egraph.run_program(*egraph.parse_program(text))


class Saturation:
    """One request: insert the terms, saturate, read the tables back."""

    def __init__(self, bindings: Any, egraph: Any, request: dict[str, Any], seconds: dict[str, float]) -> None:
        self.b, self.egraph, self.request, self.seconds = bindings, egraph, request, seconds
        self.matches: dict[str, int] = {}
        self.rulesets: dict[str, str] = dict(request["rulesets"])  # rulesets of the enabled rules
        self.paused: dict[str, int] = {}

    def answer(self) -> dict[str, Any]:
        self.time_part("insert", self.insert)
        rounds, stopped = self.time_part("saturate", self.saturate)
        tables = self.time_part("read", self.read)
        statistics = {"rounds": rounds, "stopped": stopped, "paused": self.paused, "seconds": self.seconds}
        return {**tables, "matches": self.matches, **statistics}

    def time_part(self, part: str, work: Any) -> Any:
        start = time.perf_counter()
        result = work()
        self.seconds[part] = time.perf_counter() - start
        return result

    def insert(self) -> None:
        """Insert all terms as local lets of one unconditional rule, which is the fastest way."""
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
        run_text(self.egraph, "(ruleset insert)")
        self.egraph.run_program(b.RuleCommand(b.Rule(span, actions, [], "insert", "insert")))
        run_text(self.egraph, "(run insert 1)")

    def saturate(self) -> tuple[int, str]:
        if not self.rulesets:
            return 0, "saturated"
        run_once, grown = self.combine_rulesets("all"), self.request["grown"]
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
                run_once, grown = self.combine_rulesets(f"without{done}"), size + size // 4
        return self.request["rounds"], "rounds"

    def combine_rulesets(self, name: str) -> Any:
        """The command for one round of all enabled rules."""
        run_text(self.egraph, f"(unstable-combined-ruleset {name} {' '.join(self.rulesets.values())})")
        return self.egraph.parse_program(f"(run {name} 1)")

    def pause(self, counts: dict[str, int], done: int) -> None:
        """Disable the rules with a large share of the last round's matches."""
        total = sum(counts.values())
        for rule, count in sorted(counts.items()):
            if count > LARGE_SHARE * total and rule in self.rulesets:
                del self.rulesets[rule]
                self.paused[rule] = done

    def size(self) -> int:
        (output,) = run_text(self.egraph, "(print-size)")
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


class Lines:
    """Reader of input lines, with a check whether input is available."""

    def __init__(self, source: int) -> None:
        self.source, self.rest = source, b""

    def are_coming(self, within: float) -> bool:
        return bool(self.rest or select.select([self.source], [], [], within)[0])

    def next(self) -> bytes:
        """The next line; empty at the end of the input."""
        while b"\n" not in self.rest:
            read = os.read(self.source, 1 << 20)
            if not read:
                return b""
            self.rest += read
        line, _, self.rest = self.rest.partition(b"\n")
        return line


def limit_memory() -> None:
    """Limit the address space to MEMORY bytes; a lower existing limit (`ulimit -v`) stays."""
    limits = [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY]
    most = min([MEMORY, *limits])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    limit_memory()
    lines = Lines(sys.stdin.fileno())
    bindings = load_bindings(sys.argv[1])
    shared = json.loads(lines.next() or b'{"common": [], "laws": {}}')
    laws = Laws(bindings, shared["common"], shared["laws"])
    while laws.undeclared or lines.are_coming(IDLE):
        if laws.undeclared and not lines.are_coming(0):
            laws.declare_next()
            continue
        line = lines.next()
        if not line:
            return
        sys.stdout.write(json.dumps(laws.answer(json.loads(line)), separators=(",", ":")) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
