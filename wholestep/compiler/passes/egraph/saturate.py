"""Client of the saturation worker: sends a request, receives a saturated e-graph or the reason for a failure.

The worker is a separate process because egglog may abort, hang or exhaust memory: then the worker is killed, the
program stays unchanged and the report says why.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from wholestep import platforms
from wholestep.compiler.passes.egraph import worker
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode, WorkerTables, canonical
from wholestep.compiler.passes.egraph.encode import FULL, Encoded
from wholestep.compiler.passes.egraph.rules.emit import DECLARATIONS, Constructor, EmittedRule, emit, signatures, symbol
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.rule_set import LAWS


class SaturationError(Exception):
    """Saturation failed; the text says why.  Never raised to the user: the text becomes part of the report."""


@dataclass(frozen=True)
class Budget:
    """Limits of saturation, in counts and not in seconds: a plan must be a function of the graph.

    Beyond `growth` times the number of terms plus 2000 e-nodes, the rules with most matches are disabled, so that laws
    that never saturate (some about constants) do not crowd out the others.  At twice that size the e-graph is used as
    it is.  Beyond `nodes` saturation fails.  `seconds` is only a timeout for a worker that hangs.
    """

    rounds: int = 16
    nodes: int = 60_000
    growth: int = 1
    seconds: float = 60.0

    def grown(self, terms: int) -> int:
        """The number of e-nodes beyond which rules are disabled."""
        return self.growth * terms + 2_000


@dataclass(frozen=True)
class Saturated:
    """The saturated e-graph, and statistics of the saturation."""

    egraph: EGraph
    emitted: dict[str, EmittedRule]  # rule name -> the rule as egglog text, needed to read certificates
    matches: dict[str, int]
    rounds: int
    stopped: str  # "saturated", "rounds" or "grown"
    paused: dict[str, int]  # disabled rule -> after which round
    seconds: dict[str, float]


class Worker:
    """The worker process; started on demand, and restarted if it has ended."""

    def __init__(self, command: tuple[str, ...] | None = None) -> None:
        self._command = command  # None: this interpreter running worker.py
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent = b""
        self._lock = threading.RLock()  # serialises threads that build at the same time

    def start(self) -> None:
        """Start the process, so that it loads egglog and declares laws while the request is prepared."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.close()  # the process ended after its idle timeout
            if self._process is not None:
                return
            command = self._command or _default_command()
            environment = {
                **os.environ,
                "RAYON_NUM_THREADS": "1",
            }  # with more threads, the order of e-nodes is not deterministic
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
                )
            except OSError as error:
                raise SaturationError(f"the e-graph worker could not be started: {error}") from error
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            self._unsent = _line(_common_program())
            with contextlib.suppress(BrokenPipeError):  # `ask` reports how it ended
                self._send()

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one request; a worker that does not answer is killed."""
        with self._lock:
            text = self._await_answer(_line(request), seconds) or self._await_answer(_line(request), seconds)
            if not text:
                raise SaturationError("the e-graph worker ended without an answer, twice")
        answer = json.loads(text)
        if "error" in answer:
            raise SaturationError(f"egglog failed: {answer['error']}")
        assert isinstance(answer, dict)
        return answer

    def _await_answer(self, message: bytes, seconds: float) -> bytes:
        """The answer; empty if the process has just ended by its idle timeout, so that the caller retries."""
        self.start()
        assert self._process is not None
        try:
            return self._exchange(message, seconds)
        except SaturationError:
            status = self._process.poll()
            self.close()
            if status == 0:
                return b""
            raise

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        self._unsent += message
        deadline = time.monotonic() + seconds
        chunks: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            while not (chunks and chunks[-1].endswith(b"\n")):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise SaturationError(f"the e-graph worker gave no answer within {seconds:g} s")
                if any(key.fileobj is process.stdin for key, _ in ready):
                    try:
                        self._send()
                    except BrokenPipeError:
                        raise SaturationError(self._exit_message()) from None
                    if not self._unsent:
                        selector.unregister(process.stdin)
                else:
                    chunks.append(os.read(process.stdout.fileno(), 1 << 20))
                    if not chunks[-1]:
                        raise SaturationError(self._exit_message())
        return b"".join(chunks)

    def _send(self) -> None:
        """Write as much as the pipe accepts now."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[os.write(self._process.stdin.fileno(), self._unsent) :]

    def _exit_message(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        code = self._process.wait()
        stderr_lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        last = f": {stderr_lines[-1]}" if stderr_lines else ""
        return f"the e-graph worker ended with status {code}{last}"

    def close(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            process.kill()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def forget(self) -> None:
        """In a forked process, whose parent has the worker: close this process's copies of the pipes."""
        process, self._process, self._turn = self._process, None, threading.RLock()
        if process is not None:
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.returncode = 0  # the worker is not a child of this process, which must not wait for it

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_the_worker: Worker | None = None


def shared_worker() -> Worker:
    """The worker that all builds of this process share: after the first build the laws are already declared."""
    global _the_worker
    if _the_worker is None:
        _the_worker = Worker()
        atexit.register(_the_worker.close)
    return _the_worker


def _forget_the_worker() -> None:
    """After a fork the child starts its own worker: the pipes belong to the parent."""
    global _the_worker
    if _the_worker is not None:
        atexit.unregister(_the_worker.close)
        _the_worker.forget()
        _the_worker = None


platforms.after_fork(_forget_the_worker)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


@cache
def _common_program() -> Mapping[str, Any]:
    """The declarations that all programs share: constructors and laws."""
    laws = [_emit_rule(law, 0) for law in LAWS]
    common = [*DECLARATIONS, *(c.declaration() for c in signatures(laws, ()).values())]
    return {"common": common, "laws": {law.relation: law.lines() for law in laws}}


def _default_command() -> tuple[str, ...]:
    spec = importlib.util.find_spec("egglog")
    if spec is None or not spec.submodule_search_locations:
        raise SaturationError("egglog is not installed; install it: pip install 'egglog>=13.2,<14'")
    assert worker.__file__ is not None
    # -I -S: ignore the user's environment and site-packages; the worker loads one module, by its path.
    return sys.executable, "-I", "-S", str(Path(worker.__file__)), str(spec.submodule_search_locations[0])


def saturate(encoded: Encoded, rules: Sequence[Rule], budget: Budget, process: Worker) -> Saturated:
    """Apply the rules until nothing changes or the rounds are used up; raises SaturationError if it fails."""
    constructors = constructors_of(encoded.terms)
    emitted = [_emit_rule(rule, len(LAWS) + i) for i, rule in enumerate(rules)]
    tables, laws = signatures(emitted, constructors), _common_program()
    declared = {*laws["common"]}
    program_lines = [line for c in tables.values() if (line := c.declaration()) not in declared]
    program_lines += [line for e in emitted if e.relation not in laws["laws"] for line in e.lines()]
    request = {
        "laws": [e.relation for e in emitted if e.relation in laws["laws"]],
        "program": program_lines,
        "rulesets": {e.name: e.ruleset for e in emitted},
        "terms": [[symbol(t.head), t.children, [*t.slots, t.type]] for t in encoded.terms],
        "own": len(encoded.terms) if any(rule.scaled for rule in rules) else 0,
        "equal": [[e.left, e.right] for e in encoded.definitions],
        "tables": {c.symbol: [c.children, [*c.kinds, "i64"]] for c in tables.values()},
        "certificates": {e.relation: [len(e.tensors), [k for _, k in e.numbers]] for e in emitted},
        "rounds": budget.rounds,
        "nodes": budget.nodes,
        "grown": budget.grown(len(encoded.terms)),
    }
    answer = process.ask(request, budget.seconds)
    if answer["stopped"] == "nodes":
        raise SaturationError(f"the e-graph grew beyond {budget.nodes} nodes in {answer['rounds']} rounds")
    egraph = canonical(
        encoded.terms, encoded.program, encoded.roots, encoded.definitions, _rows(answer, tables, emitted)
    )
    _check_types(egraph)
    matches = {rule: n for rule, n in sorted(answer["matches"].items()) if n}
    statistics = answer["rounds"], answer["stopped"], answer["paused"], answer["seconds"]
    return Saturated(egraph, {e.name: e for e in emitted}, matches, *statistics)


_LAW_NUMBERS = {id(law): i for i, law in enumerate(LAWS)}
_CACHE_CAPACITY = 4096  # entries of the cache below; it is cleared when full
_emitted_cache: dict[
    tuple[int, int], tuple[Rule, EmittedRule]
] = {}  # (id, number) of a rule -> the rule, kept alive, and text


def _emit_rule(rule: Rule, number: int) -> EmittedRule:
    """A rule as egglog text; cached for rules without exact types, which all programs share."""
    number = _LAW_NUMBERS.get(id(rule), number)
    if rule.types:
        return emit(rule, number, ruleset=f"only-by{number}")
    key = id(rule), number
    if key not in _emitted_cache:
        if len(_emitted_cache) >= _CACHE_CAPACITY:
            _emitted_cache.clear()
        _emitted_cache[key] = rule, emit(rule, number, ruleset=f"only-by{number}")
    return _emitted_cache[key][1]


def constructors_of(terms: Sequence[ENode]) -> list[Constructor]:
    """The signatures of a program's terms."""
    by_head: dict[str, Constructor] = {}
    for t in terms:
        kinds = ("f64",) if t.head == FULL else ("i64",) * len(t.slots)
        by_head.setdefault(t.head, Constructor(t.head, len(t.children), kinds))
    return list(by_head.values())


def _rows(answer: dict[str, Any], tables: dict[str, Constructor], rules: Sequence[EmittedRule]) -> WorkerTables:
    nodes: dict[ENode, int] = {}
    for constructor in tables.values():
        n = constructor.children
        for *values, output in answer["nodes"][constructor.symbol]:
            nodes[ENode(constructor.head, tuple(values[n:-1]), values[-1], tuple(values[:n]))] = output
    firings = [
        (rule.name, tuple(row[: len(rule.tensors)]), tuple(row[len(rule.tensors) :]))
        for rule in rules
        for row in answer["certificates"].get(rule.relation, ())
    ]
    return WorkerTables(nodes, firings)


def _check_types(egraph: EGraph) -> None:
    """Check that equal values have equal types; a violation is a bug in a rule."""
    for nodes in egraph.classes:
        types = {n.type for n in nodes}
        assert len(types) == 1, f"a rule equated terms of different types: {nodes}"
