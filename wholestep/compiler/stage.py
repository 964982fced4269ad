"""A stage of the compiler: passes under one name, with places where a target decides on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.target import OwnPass, Target

Pass = Callable[[IRGraph], IRGraph]


@dataclass(frozen=True)
class ForTarget:
    """A place among the passes whose passes depend on the target."""

    passes: Callable[[Target], tuple[Pass, ...]]


@dataclass(frozen=True)
class Stage:
    """A group of passes under the name of its span."""

    name: str
    passes: tuple[Pass | ForTarget, ...]
    egraph: bool = False  # rewritten by equality saturation afterwards, where the options say so

    def passes_for(self, target: Target) -> tuple[Pass, ...]:
        """The passes, a target's own among them."""
        return tuple(p for each in self.passes for p in passes_at(each, target))


def passes_at(place: Pass | ForTarget, target: Target) -> tuple[Pass, ...]:
    """What stands at one place of a stage."""
    return place.passes(target) if isinstance(place, ForTarget) else (place,)


def with_target(rewrite: Callable[[IRGraph, Target], IRGraph]) -> ForTarget:
    """A pass that reads the target."""
    return ForTarget(lambda target: (_bind_target(rewrite, target),))


def own(name: str) -> ForTarget:
    """The passes of one field of a target's `lowering`."""
    return ForTarget(lambda target: tuple(own_pass(p, target) for p in getattr(target.lowering, name)))


@cache
def own_pass(found: OwnPass, target: Target) -> Pass:
    """A pass that a target names."""
    module, _, name = found.path.partition(":")
    rewrite: Callable[..., IRGraph] = getattr(import_module(module), name)
    return _bind_target(rewrite, target) if found.takes_target else rewrite


@cache  # the same object every time: passes are told apart by identity
def _bind_target(rewrite: Callable[[IRGraph, Target], IRGraph], target: Target) -> Pass:
    def bound(graph: IRGraph) -> IRGraph:
        return rewrite(graph, target)

    bound.__name__ = rewrite.__name__
    return bound
