"""A stage of the compiler: a named list of passes, some of which the target chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module

from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.target import OwnPass, Target

Pass = Callable[[IRGraph], IRGraph]


@dataclass(frozen=True)
class ForTarget:
    """A position in the list whose passes depend on the target."""

    passes: Callable[[Target], tuple[Pass, ...]]


@dataclass(frozen=True)
class Stage:
    """A group of passes; its name is that of its span."""

    name: str
    passes: tuple[Pass | ForTarget, ...]
    egraph: bool = False  # is the stage followed by equality saturation, if the options enable it?

    def passes_for(self, target: Target) -> tuple[Pass, ...]:
        """The passes for a target, its own included."""
        return tuple(p for each in self.passes for p in passes_at(each, target))


def passes_at(entry: Pass | ForTarget, target: Target) -> tuple[Pass, ...]:
    """The passes at one position of a stage."""
    return entry.passes(target) if isinstance(entry, ForTarget) else (entry,)


def with_target(rewrite: Callable[[IRGraph, Target], IRGraph]) -> ForTarget:
    """A pass that takes the target as an argument."""
    return ForTarget(lambda target: (_bind_target(rewrite, target),))


def own(name: str) -> ForTarget:
    """The passes of one field of a target's `lowering`."""
    return ForTarget(lambda target: tuple(own_pass(p, target) for p in getattr(target.lowering, name)))


@cache
def own_pass(named: OwnPass, target: Target) -> Pass:
    """Import a pass that a target names."""
    module, _, name = named.path.partition(":")
    rewrite: Callable[..., IRGraph] = getattr(import_module(module), name)
    return _bind_target(rewrite, target) if named.takes_target else rewrite


@cache  # the same object every time: passes are compared by identity
def _bind_target(rewrite: Callable[[IRGraph, Target], IRGraph], target: Target) -> Pass:
    @wraps(rewrite)
    def rewrite_for_target(graph: IRGraph) -> IRGraph:
        return rewrite(graph, target)

    return rewrite_for_target
