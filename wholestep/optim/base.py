"""What all optimizers share: the description, its checks, and recording an update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError

if TYPE_CHECKING:
    from wholestep.optim.adam import Adam
    from wholestep.optim.sgd import SGD


@dataclass(frozen=True)
class Runtime:
    """A hyper-parameter that stays in the program even while its value means *off*."""

    value: float


def runtime(value: float) -> Runtime:
    """Keep an option switchable: with `momentum=ws.runtime(0.0)` the step contains momentum, at 0 for now.

    Example: `ws.SGD(lr=0.1, weight_decay=ws.runtime(0.0))`.
    """
    return Runtime(float(value))


O = TypeVar("O", bound="Optimizer")  # noqa: E741
Number = float | Runtime
Tensors = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """A frozen description of an update rule; building a session binds it to parameters.

    `name` is the prefix of its runtime scalars (`"optimizer.lr"`); two optimizers in one step need two names.
    `decay_on` holds name patterns of the parameters that weight decay acts on; None means those with two or more axes.
    """

    name: str = "optimizer"
    decay_on: tuple[str, ...] | None = None

    @abstractmethod
    def apply(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Record the new value of every parameter and of the optimizer's own states."""

    def update(self, graph: Graph, params: Tensors, grads: Tensors) -> None:
        """Record one update of `params` along `grads`: both one tensor, both sequences or both dicts."""
        chosen, slopes = _pairs(params, grads)
        for p, g in zip(chosen, slopes, strict=True):
            if p.node.op not in ("parameter", "state"):
                fail(UsageError, f"an optimizer updates parameters and states; received {p!r}.")
            if p.shape != g.shape or p.dtype != g.dtype:
                fail(UsageError, f"the gradient of {p.name!r} must be {p.node.type}; received {g.node.type}.")
        for pattern in self.decay_on or ():
            if not any(fnmatchcase(p.name, pattern) for p in chosen):
                fail(OptionError, f"decay_on={pattern!r} matches none of the parameters {[p.name for p in chosen]}.")
        self.apply(graph, chosen, slopes)

    def to_config(self) -> dict[str, Any]:
        """The description as plain data: `{"kind": "SGD", "lr": 0.01, ...}`."""
        config: dict[str, Any] = {"kind": type(self).__name__}
        for f in fields(self):
            value = getattr(self, f.name)
            config[f.name] = {"runtime": value.value} if isinstance(value, Runtime) else value
        return config

    def structure(self) -> tuple[object, ...]:
        """What two optimizers share whose programs differ in the values of runtime scalars alone."""
        switches = tuple(
            (f.name, getattr(self, f.name)) for f in fields(self) if isinstance(getattr(self, f.name), bool)
        )
        return type(self).__name__, self.name, self.decay_on, tuple(self.hyperparameters()), switches

    def scalars(self, graph: Graph) -> dict[str, Tensor]:
        """The hyper-parameters as runtime scalars of a graph, by field name."""
        values = {k: v.value if isinstance(v, Runtime) else v for k, v in self.hyperparameters().items()}
        if graph.claim(self.name, self):
            return {k: graph.scalar(f"{self.name}.{k}", v) for k, v in values.items()}
        known = graph.scalars
        return {k: known[f"{self.name}.{k}"] for k in values}

    @abstractmethod
    def hyperparameters(self) -> dict[str, Number]:
        """The numbers that are part of the program and can change between steps; what is off is left out."""

    def decays(self, param: Tensor) -> bool:
        """Whether weight decay acts on a parameter."""
        if self.decay_on is None:
            return param.ndim >= 2
        return any(fnmatchcase(param.name, pattern) for pattern in self.decay_on)

    @staticmethod
    def sgd(lr: float) -> SGD:
        """Plain descent.  Example: `ws.Optimizer.sgd(0.05)`."""
        from wholestep.optim.sgd import SGD

        return SGD(lr=lr)

    @staticmethod
    def adam(lr: float) -> Adam:
        """Adam with its usual defaults.  Example: `ws.Optimizer.adam(0.002)`."""
        from wholestep.optim.adam import Adam

        return Adam(lr=lr)

    @staticmethod
    def default() -> SGD:
        """SGD with lr 0.01.  Example: `ws.Optimizer.default()`."""
        return Optimizer.sgd(0.01)


def _pairs(params: Tensors, grads: Tensors) -> tuple[list[Tensor], list[Tensor]]:
    if isinstance(params, Mapping) and isinstance(grads, Mapping):
        if params.keys() != grads.keys():
            fail(UsageError, f"parameters {sorted(params)} and gradients {sorted(grads)} must have the same keys.")
        return list(params.values()), [grads[k] for k in params]
    chosen, slopes = _as_list(params), _as_list(grads)
    if len(chosen) != len(slopes):
        fail(
            UsageError,
            f"each parameter needs one gradient; received {len(chosen)} parameters and {len(slopes)} gradients.",
        )
    return chosen, slopes


def _as_list(tensors: Tensors) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    return list(tensors.values()) if isinstance(tensors, Mapping) else list(tensors)


# -- constructors ------------------------------------------------------------------------------------------------


def with_aliases(**aliases: str) -> Callable[[type[O]], type[O]]:
    """Let a constructor take the names that other libraries use: `learning_rate="lr"`, `beta1="betas[0]"`."""

    def wrap(cls: type[O]) -> type[O]:
        original = cls.__init__

        @wraps(original)
        def init(self: O, *args: Any, **given: Any) -> None:
            if args and not isinstance(args[0], int | float | Runtime):
                _refuse_parameters(cls.__name__, args[0])
            positional = [f.name for f in fields(cls) if not f.kw_only][: len(args)]
            original(self, *args, **_translate(cls, positional, given, aliases))

        setattr(cls, "__init__", init)  # noqa: B010
        return cls

    return wrap


def _refuse_parameters(kind: str, received: object) -> None:
    fail(
        UsageError,
        f"ws.{kind} takes no parameters, only numbers; received a {type(received).__name__}. The session binds it to "
        f"the graph's parameters: ws.build_session(g, optimizer=ws.{kind}(lr=0.01)).",
    )


def _translate(
    cls: type[Optimizer], positional: Sequence[str], given: dict[str, Any], aliases: Mapping[str, str]
) -> dict[str, Any]:
    out = {k: v for k, v in given.items() if k not in aliases}
    for alias in aliases.keys() & given.keys():
        target, _, position = aliases[alias].rstrip("]").partition("[")
        if target in given or target in positional:
            fail(UsageError, f"{cls.__name__}: {alias} and {target} are the same option; give one of them.")
        if position:
            pair = list(out.get(target, next(f.default for f in fields(cls) if f.name == target)))
            pair[int(position)] = given[alias]
            out[target] = tuple(pair)
        else:
            out[target] = given[alias]
    return out


def is_off(value: object) -> bool:
    """A plain 0 or False is structure: the program does not contain it."""
    return not isinstance(value, Runtime) and not value


def check_number(kind: str, what: str, value: object, below: float = float("inf")) -> None:
    """A number (or a runtime one) in [0, below)."""
    number = value.value if isinstance(value, Runtime) else value
    if not isinstance(number, int | float) or isinstance(number, bool):
        fail(UsageError, f"{kind}: {what} must be a number; received {number!r}.")
    if not 0.0 <= number < below:
        upper = f" and below {below:g}" if below < float("inf") else " and finite"
        fail(OptionError, f"{kind}: {what} must be at least 0{upper}; received {number}.")
