"""The base of all optimizers: hyperparameters, parameter groups, and recording an update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.precision import half_parameter_error
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import UPDATE, fail, record_for_layer
from wholestep.compiler.ir.graph import Node
from wholestep.errors import DTypeError, OptionError, UsageError
from wholestep.optim.core.config import REGISTRY, as_config, optimizer_from_config
from wholestep.optim.core.groups import Group, assign, check_groups
from wholestep.optim.core.options import Number, check_options, plain, runtime_numbers, structural_options

if TYPE_CHECKING:
    from wholestep.optim.algorithms.adam import Adam
    from wholestep.optim.algorithms.sgd import SGD
    from wholestep.optim.core.arrays import ArrayForm, Arrays, Params

Tensors = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
Scalars = dict[str, Tensor]
T = TypeVar("T")


@dataclass(frozen=True)
class GroupMember:
    """Marks the optimizer of a group: its base optimizer, and the runtime scalars that only the group has."""

    base: Optimizer
    group: Group
    own: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """An immutable configuration of an update rule; building a session binds it to parameters.

    A user-defined rule is a frozen dataclass whose fields are its hyperparameters and whose method `descend` returns
    the new parameters; groups, freezing, saving and the array form are inherited.

    Args:
        name: the prefix of its runtime scalars (`"optimizer.lr"`); two optimizers in one step need two names.
        decay_on: name patterns of the parameters that weight decay acts on; None: parameters with two or more axes.
        groups: parameters that are treated differently; see `ws.Group`.
        maximize: climb instead of descend.
    """

    name: str = "optimizer"
    decay_on: tuple[str, ...] | None = None
    groups: tuple[Group, ...] = field(default=())
    maximize: bool = False

    aliases: ClassVar[Mapping[str, str]] = {}
    slot: ClassVar[str] = ""  # the middle of its states' names: `w.<slot>.m`
    _member: ClassVar[GroupMember | None] = None  # set on the optimizer of a group

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        REGISTRY[cls.__name__] = cls

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "groups", check_groups(type(self).__name__, self.groups))
        if self.decay_on is not None:
            object.__setattr__(self, "decay_on", tuple(self.decay_on))

    # -- the rule --------------------------------------------------------------------------------------------------

    @abstractmethod
    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        """The new value of every parameter, as expressions; also records the updates of the optimizer's own states."""

    def gradients(self, loss: Tensor, params: Any) -> Any:
        """The gradients for this optimizer: `ws.gradients(loss, params)`, unless a subclass (SAM) overrides it."""
        return gradients(loss, params)

    def apply(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        """The new value of each parameter, by the rule of its group; a frozen one is unchanged."""
        groups_of_params = assign(self.groups, params, graph)
        new: list[Tensor] = list(params)
        for group in (None, *self.groups):
            places = [i for i, g in enumerate(groups_of_params) if g is group]
            if not places or (group is not None and group.frozen):
                continue
            slopes = [-grads[i] if self.maximize else grads[i] for i in places]
            rule = self if group is None else self._of_group(group)
            moved = rule.descend(graph, [params[i] for i in places], slopes)
            for i, value in zip(places, moved, strict=True):
                new[i] = value
        return new

    def update(self, graph: Graph, params: Tensors, grads: Tensors) -> None:
        """Record one update of `params` along `grads`: both one tensor, both sequences or both dicts."""
        chosen, slopes = _pairs(params, grads)
        for p, g in zip(chosen, slopes, strict=True):
            if not p.node.is_state:
                fail(UsageError, f"an optimizer updates parameters and states; received {p!r}.")
            if p.dtype.is_half:
                fail(DTypeError, half_parameter_error(f"an optimizer was given {p.name!r}, {p.node.type}"))
            if p.shape != g.shape or p.dtype != g.dtype:
                fail(UsageError, f"the gradient of {p.name!r} must be {p.node.type}; received {g.node.type}.")
        for pattern in self.decay_on or ():
            if not any(fnmatchcase(p.name, pattern) for p in chosen):
                fail(OptionError, f"decay_on={pattern!r} matches none of the parameters {[p.name for p in chosen]}.")
        with record_for_layer(UPDATE):
            for p, new in zip(chosen, self.apply(graph, chosen, slopes), strict=True):
                if new is not p:
                    graph.update(p, new)

    def trainable(self, params: Sequence[Tensor]) -> list[Tensor]:
        """The parameters that are not frozen."""
        return [p for p in params if not _is_frozen(self.groups, p)]

    def _of_group(self, group: Group) -> Optimizer:
        rule, own_scalars = group.member(self)
        if group.optimizer is None:
            object.__setattr__(rule, "_member", GroupMember(self, group, own_scalars))
        return rule

    # -- helpers of update rules ---------------------------------------------------------------------------------

    def scalars(self, graph: Graph) -> Scalars:
        """The hyper-parameters as runtime scalars of a graph, by field name (betas as beta1 and beta2)."""
        member = self._member
        graph.claim(self.name, self if member is None else member.base)
        out = {k: _scalar(graph, self._scalar_name(k), plain(v)) for k, v in self.hyperparameters().items()}
        if member is not None and member.group.lr_scale is not None:
            scale = _scalar(graph, f"{self.prefix}.lr_scale", plain(member.group.lr_scale))
            out["lr"] = out["lr"] * scale
        return out

    def state(self, graph: Graph, w: Tensor, what: str, shape: object = None, init: float = 0.0) -> Tensor:
        """A state that belongs to a parameter, with its shape by default: `w.adam.m`."""
        name = f"{w.name}.{self.slot}.{what}"
        return graph.state_like(w, name, init) if shape is None else graph.state(name, shape, init, dtype=w.dtype)

    def _scalar_state(self, graph: Graph, what: str) -> Tensor:
        """A float64 scalar state for all parameters of the optimizer, or of its group: `optimizer.prodigy.d`."""
        return graph.state(f"{self.prefix}.{self.slot}.{what}", (), 0.0, dtype="float64")

    def update_number(self, graph: Graph, w: Tensor) -> Tensor:
        """The update number t = 1, 2, ... of a parameter, counted over optimizers of this slot, as a runtime scalar.

        It counts updates of the parameter, not steps of the model: it starts at 1 for a new optimizer, and for a
        parameter that was frozen before.
        """
        return graph.update_number(f"{w.name}.{self.slot}")

    def by_update(self, graph: Graph, params: Sequence[Tensor], formula: Callable[[Tensor], T]) -> list[T]:
        """The value of `formula(t)` for each parameter, recorded once for all with the same number of updates."""
        numbers = [self.update_number(graph, w) for w in params]
        values: dict[Node, T] = {}
        for t in numbers:
            if t.node not in values:
                values[t.node] = formula(t)
        return [values[t.node] for t in numbers]

    def decays(self, param: Tensor) -> bool:
        """Whether weight decay acts on a parameter."""
        if self.decay_on is None:
            return param.ndim >= 2
        return any(fnmatchcase(param.name, pattern) for pattern in self.decay_on)

    def penalised(self, s: Scalars, w: Tensor, g: Tensor) -> Tensor:
        """The gradient g + weight_decay·w with its L2 penalty; g without weight decay."""
        return g + s["weight_decay"] * w if "weight_decay" in s and self.decays(w) else g

    def shrunk(self, s: Scalars, w: Tensor) -> Tensor:
        """The weight after decoupled weight decay: (1 - lr·weight_decay)·w (arXiv:1711.05101)."""
        return w * (1.0 - s["lr"] * s["weight_decay"]) if "weight_decay" in s and self.decays(w) else w

    def _apply_decay(self, s: Scalars, w: Tensor, g: Tensor, *, decoupled: bool) -> tuple[Tensor, Tensor]:
        """The weight and the gradient after weight decay, which acts on the weight if it is decoupled."""
        return (self.shrunk(s, w), g) if decoupled else (w, self.penalised(s, w, g))

    # -- numbers -----------------------------------------------------------------------------------------------------

    def hyperparameters(self) -> dict[str, Number]:
        """The numbers that are part of the program and can change between steps, without disabled options."""
        return runtime_numbers(self)

    def runtime_values(self) -> dict[str, float]:
        """The runtime scalars of a step with this optimizer, groups included, by their full names."""
        out = {f"{self.name}.{k}": plain(v) for k, v in self.hyperparameters().items()}
        for group in self.groups:
            if group.frozen:
                continue
            rule, own_scalars = group.member(self)
            prefix = f"{self.name}.{group.name}"
            if group.optimizer is not None:
                out.update(rule.runtime_values())
                continue
            out.update({f"{prefix}.{k}": plain(v) for k, v in rule.hyperparameters().items() if k in own_scalars})
            if group.lr_scale is not None:
                out[f"{prefix}.lr_scale"] = plain(group.lr_scale)
        return out

    def structure(self) -> tuple[object, ...]:
        """A key that is equal for optimizers whose programs differ in the values of runtime scalars only."""
        options = tuple((k, v) for k, v in structural_options(self) if k != "groups")
        groups = tuple((g.match, g.ndim, g.name, g.frozen, g.member(self)[0].structure()) for g in self.groups)
        return type(self).__name__, options, tuple(self.runtime_values()), groups

    @property
    def lr_name(self) -> str:
        """The name of the runtime scalar with the learning rate."""
        return f"{self.name}.lr"

    def named(self, name: str) -> Self:
        """The same optimizer under another name."""
        return replace(self, name=name)

    @property
    def prefix(self) -> str:
        """Prefix of the optimizer's runtime scalars: its name, and the name of its group if it belongs to one."""
        return self.name if self._member is None else f"{self.name}.{self._member.group.name}"

    def _scalar_name(self, key: str) -> str:
        is_own = self._member is None or key in self._member.own
        return f"{self.prefix if is_own else self.name}.{key}"

    # -- as plain data -----------------------------------------------------------------------------------------------

    def to_config(self) -> dict[str, Any]:
        """The optimizer as plain data: `{"kind": "SGD", "lr": 0.01, ...}`."""
        options = {f.name: as_config(getattr(self, f.name)) for f in fields(self) if f.init}
        return {"kind": type(self).__name__, **options}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Optimizer:
        """The optimizer for a `to_config()`.  Example: `ws.Optimizer.from_config({"kind": "SGD", "lr": 0.1})`."""
        return optimizer_from_config(config)

    # -- on arrays ---------------------------------------------------------------------------------------------------

    def step(self, params: Params | None = None, grads: Arrays | None = None) -> None:
        """Update NumPy arrays in place, by the same compiled expression as in a session.

        Args:
            params: an array, a list or a dict of arrays (names for groups), the same shapes in every call; or a model,
                or its `parameters()`, whose numbers then change.
            grads: the gradients, in the same form; of a model a dict by name, or a list for those that are not frozen.

        Example::

            optimizer = ws.SGD(lr=0.01)
            optimizer.step([w], [dw])
            optimizer.step(model, {"weight": dw, "bias": db})
        """
        if params is None or grads is None:
            fail(
                UsageError,
                "optimizer.step() has nothing to update: session.step(...) and ws.fit make whole steps, forward, loss, "
                "backward and update. On arrays of your own write optimizer.step(params, grads).",
            )
        self._arrays.step(params, grads)

    def zero_grad(self, grads: Arrays | None = None) -> None:
        """Set gradient arrays to zero.  The optimizer holds none itself, so without arrays there is nothing to do."""
        self._arrays.zero(grads)

    def get_lr(self) -> float:
        """The current learning rate of `step`."""
        return self._arrays.get(self.lr_name)

    def set_lr(self, lr: float) -> None:
        """Change the learning rate of `step` from the next call on; nothing is compiled."""
        self._arrays.set(self.lr_name, lr)

    def state_dict(self) -> dict[str, Any]:
        """The state of `step`: optimizer states, the step count and the runtime scalars."""
        return self._arrays.state_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Restore a `state_dict()`."""
        self._arrays.load_state_dict(values)

    @property
    def _arrays(self) -> ArrayForm:
        # Not a field: the configuration stays immutable and comparable, whatever arrays it has updated.
        if "_array_form" not in self.__dict__:
            from wholestep.optim.core.arrays import ArrayForm  # imported here because few optimizers update arrays

            object.__setattr__(self, "_array_form", ArrayForm(self))
        form: ArrayForm = self.__dict__["_array_form"]
        return form

    # -- short names -------------------------------------------------------------------------------------------------

    @staticmethod
    def sgd(lr: float) -> SGD:
        """Plain gradient descent.  Example: `ws.Optimizer.sgd(0.05)`."""
        from wholestep.optim.algorithms.sgd import SGD

        return SGD(lr=lr)

    @staticmethod
    def adam(lr: float) -> Adam:
        """Adam with its usual defaults.  Example: `ws.Optimizer.adam(0.002)`."""
        from wholestep.optim.algorithms.adam import Adam

        return Adam(lr=lr)

    @staticmethod
    def default() -> SGD:
        """The default optimizer: SGD with lr 0.01.  Example: `ws.Optimizer.default()`."""
        return Optimizer.sgd(0.01)


def _scalar(graph: Graph, name: str, value: float) -> Tensor:
    scalars = graph.scalars
    return scalars[name] if name in scalars else graph.scalar(name, value)


def _is_frozen(groups: Sequence[Group], param: Tensor) -> bool:
    first = next((g for g in groups if g.matches(param)), None)
    return first is not None and first.frozen


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
