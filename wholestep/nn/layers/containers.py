"""Containers of modules, and layers that only change the shape, pass their input through or set the precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, TypeVar

from wholestep.compiler.frontend.functions.primitives import concat, one_hot
from wholestep.compiler.frontend.shape import axes
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.lazy import interop
from wholestep.nn.layers.table_encoding import encoding_of, keep_encoding
from wholestep.nn.module.function_module import FunctionModule
from wholestep.nn.module.module import MEANINGS, Module


class Sequential(Module):
    """A chain of modules: each takes the output of the module before it.

    Example: `ws.nn.Sequential(ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10))`.
    """

    def __init__(self, *modules: Any) -> None:
        items = modules[0] if len(modules) == 1 and isinstance(modules[0], list | tuple | dict) else modules
        named = items if isinstance(items, dict) else {str(i): m for i, m in enumerate(items)}
        for m in named.values():
            if not isinstance(m, Module):
                fail(UsageError, f"Sequential takes modules; received {m!r}. {_instead(m)}")
        self.layers, self._names = list(named.values()), list(named)

    def children(self) -> dict[str, Module]:
        return dict(zip(self._names, self.layers, strict=True))

    def append(self, module: Module) -> Sequential:
        """Append a module."""
        self.layers.append(module)
        self._names.append(str(len(self._names)))
        return self

    def forward(self, x: Any) -> Any:
        for i, module in enumerate(self.layers):
            one = type(module).__module__ in ONE_TENSOR and type(module).__name__ != "Lambda"
            if isinstance(x, tuple) and one:
                fail(
                    UsageError,
                    f"Sequential: module {i - 1}, {self.layers[i - 1]!r}, gives a tuple of {len(x)}, and {module!r} "
                    "takes one tensor. Put what you want of it between them: ws.nn.Lambda(lambda outputs: outputs[0]).",
                )
            x = module(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, position: Any) -> Any:
        """The module at a position; for a slice, a `Sequential` of the same modules."""
        return Sequential(*self.layers[position]) if isinstance(position, slice) else self.layers[position]

    def __setitem__(self, position: int, module: Module) -> None:
        self.layers[position] = module

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)


# Modules in which every layer takes a single tensor.
ONE_TENSOR = frozenset(
    f"wholestep.nn.layers.{name}" for name in ("linear", "activations", "convolution", "normalization")
)


def _instead(value: object) -> str:
    if isinstance(value, str):
        return "Children are a dict by name: write *model.children().values()."
    if isinstance(value, type):
        return f"That is the class; make one: {value.__name__}(...)."
    return interop.suggest_replacement(value, "ws.nn") or "For a function write ws.nn.Lambda(f)."


class Residual(Module):
    """A residual connection: x + body(x) (arXiv:1512.03385), or shortcut(x) + body(x) where the shapes differ.

    Example: `ws.nn.Residual(ws.nn.Sequential(ws.nn.LayerNorm(64), ws.nn.Linear(64, 64)))`.
    """

    def __init__(self, body: Module, shortcut: Module | None = None) -> None:
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        straight = x if self.shortcut is None else self.shortcut(x)
        bent = self.body(x)
        if bent.shape != straight.shape:
            fail(
                UsageError,
                f"Residual: the body turns {straight!r} into {bent!r}; their shapes must agree. Give shortcut= a "
                "module that makes the same shape.",
            )
        return straight + bent  # type: ignore[no-any-return]


def _check_module(kind: str, module: Any) -> Any:
    if not isinstance(module, Module | ModuleList | ModuleDict):
        fail(UsageError, f"{kind} holds modules; received {module!r}. For a function write ws.nn.Lambda(f).")
    return module


class ModuleList(list[Any]):
    """A list of modules.  A list in an attribute is found as well; this class rejects what is not a module.

    Example: `self.blocks = ws.nn.ModuleList(ws.nn.Linear(8, 8) for _ in range(3))`.
    """

    def __init__(self, modules: Iterable[Any] = ()) -> None:
        super().__init__(_check_module("ModuleList", m) for m in modules)

    def append(self, module: Any) -> None:
        super().append(_check_module("ModuleList", module))


class ModuleDict(dict[str, Any]):
    """A dict of modules.  A dict in an attribute is found as well; this class rejects what is not a module.

    Example: `self.heads = ws.nn.ModuleDict({"left": ws.nn.Linear(8, 2), "right": ws.nn.Linear(8, 3)})`.
    """

    def __init__(self, modules: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__({name: _check_module("ModuleDict", m) for name, m in dict(modules).items()})

    def __setitem__(self, name: str, module: Any) -> None:
        super().__setitem__(name, _check_module("ModuleDict", module))

    def __getattr__(self, name: str) -> Any:
        """`self.blocks.first` is `self.blocks["first"]`."""
        if name in self:
            return self[name]
        raise AttributeError(f"this ModuleDict has no module {name!r}; it has: {', '.join(self) or 'none'}")


class Identity(Module):
    """Returns its input; arguments are ignored, as in PyTorch.  Example: `model.head = ws.nn.Identity()`."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def forward(self, x: Any) -> Any:
        return x


class Unflatten(FunctionModule, function=axes.unflatten):
    """Splits an axis into several.  Example: `ws.nn.Unflatten(1, (16, 7, 7))`."""

    def __init__(self, axis: int, sizes: Sequence[int]) -> None:
        self.axis, self.sizes = axis, tuple(sizes)


M = TypeVar("M", bound=Module)


def in_float32(layer: M) -> M:
    """Keep the products of a layer, and of everything inside it, in float32 whatever the precision of a session.

    Useful for a last layer whose scores differ little, for distances, and for sums of many large terms. In a float32
    session it has no effect.

    Example: `ws.nn.Sequential(body, ws.nn.in_float32(ws.nn.Linear(64, 10)))`.
    """
    if not isinstance(layer, Module):
        fail(
            UsageError,
            f"in_float32 takes a layer, a ws.nn.Module; received {layer!r}. Make what it computes one.",
        )
    layer.products_in_float32 = True
    return layer


class Ensemble(Module):
    """Several models with the same inputs and outputs, combined in one program.

    Args:
        members: the models.
        combine: "mean" of the outputs; for scores of classes that is the normalised geometric mean of the members'
            probabilities.  "vote": the fraction of the members that give the class the highest score.  Or a module
            that takes the members' outputs side by side on their last axis (stacking); it is trained by `ws.fit` of the
            ensemble, after `member.freeze("*")` of each.

    Example: `ws.nn.Ensemble([one, other]).predict(x)`.
    """

    def __init__(self, members: Sequence[Module], combine: str | Module = "mean") -> None:
        if not members or not all(isinstance(m, Module) for m in members):
            fail(UsageError, f"an ensemble has at least one module; received {members!r}. Give [one, other].")
        if combine not in ("mean", "vote") and not isinstance(combine, Module):
            fail(OptionError, f"combine is 'mean', 'vote' or a module that takes all outputs; received {combine!r}.")
        self.members, self.combine = list(members), combine
        if (encoding := encoding_of(self.members[0])) is not None:
            keep_encoding(self, encoding)
        if MEANINGS in self.members[0].__dict__:
            self.__dict__[MEANINGS] = self.members[0].__dict__[MEANINGS]

    def children(self) -> dict[str, Module]:
        members = {str(i): member for i, member in enumerate(self.members)}
        return {**members, "combine": self.combine} if isinstance(self.combine, Module) else members

    def forward(self, *inputs: Any, **named: Any) -> Any:
        outputs = [member(*inputs, **named) for member in self.members]
        if isinstance(self.combine, Module):
            return self.combine(concat(outputs, -1))
        return _mean([_vote(out) for out in outputs] if self.combine == "vote" else outputs)


def _vote(scores: Tensor) -> Tensor:
    """1 for the class of the highest score, 0 for others."""
    return one_hot(scores.argmax(-1), int(scores.shape[-1]), scores.dtype)


def _mean(outputs: list[Any]) -> Any:
    """The mean of tensors, or of tuples or dicts of tensors element by element."""
    first = outputs[0]
    if isinstance(first, dict):
        return {name: _mean([out[name] for out in outputs]) for name in first}
    if isinstance(first, tuple):
        return tuple(_mean(list(each)) for each in zip(*outputs, strict=True))
    return reduce(add, outputs) / float(len(outputs))
