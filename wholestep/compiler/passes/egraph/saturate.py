"""Talking to the worker: a request goes out, a saturated e-graph comes back, or the reason why not.

The worker is another process because egglog may abort, hang or take all memory: then it is given up, the program stays
as it was and the report says why.
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

from wholestep.compiler.passes.egraph import worker
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode, WorkerTables, canonical
from wholestep.compiler.passes.egraph.encode import FULL, Encoded
from wholestep.compiler.passes.egraph.rules import LAWS
from wholestep.compiler.passes.egraph.rules.emit import DECLARATIONS, Constructor, EmittedRule, emit, signatures, symbol
from wholestep.compiler.passes.egraph.rules.rule import Rule


class SaturationError(Exception):
    """There is no e-graph; the text says why.  Never reaches the user: the report does."""


@dataclass(frozen=True)
class Budget:
    """Counts, never seconds: a plan is a function of the graph.  `seconds` is a safety net for a hung worker.

    Once the e-graph outgrows `growth` times its terms, and some more, the rules that match most are set aside: a few
    laws about constants may go on for ever, and the others still have their say.  At twice that size it is used as it
    is.  Beyond `nodes` there is no result.
    """

    rounds: int = 16
    nodes: int = 60_000
    growth: int = 1
    seconds: float = 60.0

    def grown(self, terms: int) -> int:
        """The e-nodes from which rules are set aside."""
        return self.growth * terms + 2_000


@dataclass(frozen=True)
class Saturated:
    """The e-graph and how it came to be."""

    egraph: EGraph
    emitted: dict[str, EmittedRule]  # the rules by name, as certificates are read
    matches: dict[str, int]
    rounds: int
    stopped: str  # "saturated", "rounds" or "grown"
    paused: dict[str, int]  # rules that were set aside -> after which round
    seconds: dict[str, float]


class Worker:
    """A process that saturates; started on demand, and again where it has ended since."""

    def __init__(self, command: tuple[str, ...] | None = None) -> None:
        self._command = command  # None: this interpreter running worker.py
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent = b""
        self._turn = threading.RLock()  # of threads that build at the same time

    def start(self) -> None:
        """Start the process, so that it loads egglog and declares laws while we prepare the request."""
        with self._turn:
            if self._process is not None and self._process.poll() is not None:
                self.close()  # it had nothing to do for a while, and ended
            if self._process is not None:
                return
            command = self._command or _default_command()
            environment = {**os.environ, "RAYON_NUM_THREADS": "1"}  # with more, the e-graph's order is not determined
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
                )
            except OSError as error:
                raise SaturationError(f"the e-graph worker could not be started: {error}") from error
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            self._unsent = _line(_common_program())
            with contextlib.suppress(BrokenPipeError):  # `ask` tells how it ended
                self._send()

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one request; a worker that gives none is ended."""
        with self._turn:
            text = self._await_answer(_line(request), seconds) or self._await_answer(_line(request), seconds)
            if not text:
                raise SaturationError("the e-graph worker ended without an answer, twice")
        answer = json.loads(text)
        if "error" in answer:
            raise SaturationError(f"egglog failed: {answer['error']}")
        assert isinstance(answer, dict)
        return answer

    def _await_answer(self, message: bytes, seconds: float) -> bytes:
        """The answer; nothing where the process had just decided that it is no longer needed."""
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
                        raise SaturationError(self._epitaph()) from None
                    if not self._unsent:
                        selector.unregister(process.stdin)
                else:
                    chunks.append(os.read(process.stdout.fileno(), 1 << 20))
                    if not chunks[-1]:
                        raise SaturationError(self._epitaph())
        return b"".join(chunks)

    def _send(self) -> None:
        """Give the process as much as it takes now."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[os.write(self._process.stdin.fileno(), self._unsent) :]

    def _epitaph(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        code = self._process.wait()
        said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        return f"the e-graph worker ended with status {code}{last}"

    def close(self) -> None:
        """End the process."""
        with self._turn:
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
            process.returncode = 0  # it is no child of ours: nothing to wait for, and nothing to warn of

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_the_worker: Worker | None = None


def shared_worker() -> Worker:
    """The worker of all builds of this process: a second build finds it with the laws declared."""
    global _the_worker
    if _the_worker is None:
        _the_worker = Worker()
        atexit.register(_the_worker.close)
    return _the_worker


def _forget_the_worker() -> None:
    """A forked process has one of its own: the pipes are its parent's."""
    global _the_worker
    if _the_worker is not None:
        atexit.unregister(_the_worker.close)
        _the_worker.forget()
        _the_worker = None


os.register_at_fork(after_in_child=_forget_the_worker)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


@cache
def _common_program() -> Mapping[str, Any]:
    """The laws, and what they are about: the same in every program."""
    laws = [_emit_rule(law, 0) for law in LAWS]
    common = [*DECLARATIONS, *(c.declaration() for c in signatures(laws, ()).values())]
    return {"common": common, "laws": {law.relation: law.lines() for law in laws}}


def _default_command() -> tuple[str, ...]:
    found = importlib.util.find_spec("egglog")
    if found is None or not found.submodule_search_locations:
        raise SaturationError("egglog is not installed; install it: pip install 'egglog>=13.2,<14'")
    assert worker.__file__ is not None
    # -I -S: neither the user's environment nor site-packages is read; the worker needs one module, by its path.
    return sys.executable, "-I", "-S", str(Path(worker.__file__)), str(found.submodule_search_locations[0])


def saturate(encoded: Encoded, rules: Sequence[Rule], budget: Budget, process: Worker) -> Saturated:
    """Apply the rules until nothing changes or the rounds are spent; a SaturationError says why there is no result."""
    constructors = constructors_of(encoded.terms)
    emitted = [_emit_rule(rule, len(LAWS) + i) for i, rule in enumerate(rules)]
    tables, laws = signatures(emitted, constructors), _common_program()
    declared = {*laws["common"]}
    own = [line for c in tables.values() if (line := c.declaration()) not in declared]
    own += [line for e in emitted if e.relation not in laws["laws"] for line in e.lines()]
    request = {
        "laws": [e.relation for e in emitted if e.relation in laws["laws"]],
        "program": own,
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
    told = answer["rounds"], answer["stopped"], answer["paused"], answer["seconds"]
    return Saturated(egraph, {e.name: e for e in emitted}, matches, *told)


_LAW_NUMBERS = {id(law): i for i, law in enumerate(LAWS)}
_MOST_KNOWN = 4096
_known: dict[tuple[int, int], tuple[Rule, EmittedRule]] = {}  # by id and number; what has an id is kept with it


def _emit_rule(rule: Rule, number: int) -> EmittedRule:
    """A rule as text; what is the same in every program is written once for each number that it had in one."""
    number = _LAW_NUMBERS.get(id(rule), number)
    if rule.types:
        return emit(rule, number, ruleset=f"only-by{number}")
    key = id(rule), number
    if key not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = rule, emit(rule, number, ruleset=f"only-by{number}")
    return _known[key][1]


def constructors_of(terms: Sequence[ENode]) -> list[Constructor]:
    """The signatures of a program's terms."""
    found: dict[str, Constructor] = {}
    for t in terms:
        kinds = ("f64",) if t.head == FULL else ("i64",) * len(t.slots)
        found.setdefault(t.head, Constructor(t.head, len(t.children), kinds))
    return list(found.values())


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
    """Equal values have equal types: anything else is a wrong rule."""
    for nodes in egraph.classes:
        types = {n.type for n in nodes}
        assert len(types) == 1, f"a rule made terms of different types equal: {nodes}"
