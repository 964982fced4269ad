"""Parameter groups: a selection of parameters, and their options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.optim.core.options import Number, Range, parts_of, translate

if TYPE_CHECKING:
    from wholestep.optim.core.base import Optimizer

Predicate = Callable[[Tensor], bool]


@dataclass(frozen=True, init=False)
class Group:
    """Parameters that an optimizer treats differently.

    The first group that matches a parameter has it; what no group matches is the optimizer's own.  A group has runtime
    scalars of its own for what it changes (`"optimizer.bias.lr"`) and shares the others, so that a schedule of
    `"optimizer.lr"` reaches every group without an lr of its own.  A weight decay that a group names acts on all of
    its parameters, whatever their number of axes.

    Args:
        match: a name pattern (`"*.bias"`), several, or a predicate of the parameter (`lambda p: p.ndim < 2`).
        ndim: only parameters with this many axes: a number or several.
        name: the name in scalars and reports; by default derived from the pattern (`"*.bias"` is `bias`).
        frozen: its parameters are not trained.
        lr_scale: its learning rate as a multiple of the optimizer's.
        optimizer: another optimizer for these parameters.
        options: options of the optimizer with other values.

    Example: `ws.AdamW(groups=[ws.Group("*.bias", weight_decay=0.0), ws.Group("head.*", lr=1e-2)])`.
    """

    match: str | tuple[str, ...] | Predicate
    ndim: tuple[int, ...] | None
    name: str
    frozen: bool
    lr_scale: Number | None
    optimizer: Optimizer | None
    options: tuple[tuple[str, Any], ...]

    def __init__(
        self,
        match: str | Sequence[str] | Predicate = "*",
        *,
        ndim: int | Sequence[int] | None = None,
        name: str | None = None,
        frozen: bool = False,
        lr_scale: Number | None = None,
        optimizer: Optimizer | None = None,
        **options: Any,
    ) -> None:
        chosen = match if isinstance(match, str) or callable(match) else tuple(match)
        values: dict[str, Any] = {
            "match": chosen,
            "ndim": (ndim,) if isinstance(ndim, int) else None if ndim is None else tuple(ndim),
            "name": name or _name_of(chosen),
            "frozen": frozen,
            "lr_scale": lr_scale,
            "optimizer": optimizer,
            "options": tuple(sorted(options.items())),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        self._check()

    def _check(self) -> None:
        patterns = self.patterns
        if not callable(self.match) and not (patterns and all(isinstance(p, str) and p for p in patterns)):
            fail(UsageError, f"Group: match is a name pattern, several, or a predicate; received {self.match!r}.")
        if self.lr_scale is not None:
            Range().check(str(self), "lr_scale", self.lr_scale)
            if "lr" in dict(self.options) or "learning_rate" in dict(self.options):
                fail(UsageError, f"{self}: lr and lr_scale exclude each other; give one of them.")
        if self.frozen and (self.options or self.lr_scale is not None or self.optimizer is not None):
            fail(UsageError, f"{self} is frozen, so it takes no other options; received {dict(self.options)}.")
        if self.optimizer is not None and (self.options or self.lr_scale is not None):
            fail(UsageError, f"{self} has an optimizer of its own; give the options to that one.")

    @property
    def patterns(self) -> tuple[str, ...]:
        """The name patterns; empty if the group uses a predicate."""
        if callable(self.match):
            return ()
        return (self.match,) if isinstance(self.match, str) else self.match

    def matches(self, param: Tensor) -> bool:
        """Does the group match the parameter?  A parameter belongs to the first matching group."""
        if self.ndim is not None and param.ndim not in self.ndim:
            return False
        if callable(self.match):
            return bool(self.match(param))
        return any(fnmatchcase(param.name, pattern) for pattern in self.patterns)

    def member(self, base: Optimizer) -> tuple[Optimizer, frozenset[str]]:
        """The optimizer of this group's parameters, and the names of the runtime scalars that only the group has."""
        if self.optimizer is not None:
            rule = self.optimizer.named(f"{base.name}.{self.name}")
            return rule, frozenset(rule.hyperparameters())
        options = translate(type(base), dict(self.options), base=base)
        allowed = [f.name for f in fields(base) if not f.kw_only]
        for option in options:
            if option not in allowed:
                fail(
                    OptionError,
                    f"{self}: {type(base).__name__} has no option {option!r} for a group; it has: "
                    f"{', '.join(allowed)}.",
                )
        if "weight_decay" in options:
            options["decay_on"] = ("*",)
        rule = replace(base, groups=(), **options)
        changed = [part for option in options if option != "decay_on" for part in parts_of(type(base), option)]
        return rule, frozenset(changed)

    def to_config(self) -> dict[str, Any]:
        """The group as plain data; a predicate cannot be converted."""
        if callable(self.match):
            fail(
                UsageError,
                f"{self} is chosen by a function, which a configuration cannot store; use name patterns and ndim= "
                "instead.",
            )
        from wholestep.optim.core.config import as_config

        named = {f.name: as_config(getattr(self, f.name)) for f in fields(self) if f.name != "options"}
        return {**named, "options": {name: as_config(value) for name, value in self.options}}

    def __str__(self) -> str:
        return f"Group({self.name!r})"


def layerwise_lr_decay(layers: Sequence[str | Sequence[str]], decay: float) -> list[Group]:
    """Groups for layer-wise learning-rate decay (arXiv:1801.06146): layer i of n has lr·decay^(n - 1 - i).

    Args:
        layers: the name patterns of every layer, from the input to the output; what none matches has the full rate.
        decay: the rate of a layer relative to the rate of the next layer, above 0 and at most 1.

    Example: `ws.AdamW(groups=ws.optim.layerwise_lr_decay(["embed.*", "blocks.0.*", "blocks.1.*", "head.*"], 0.8))`.
    """
    if isinstance(layers, str) or not layers:
        fail(UsageError, f"layerwise_lr_decay: layers must be a list of name patterns; received {layers!r}.")
    if not isinstance(decay, int | float) or not 0.0 < decay <= 1.0:
        fail(OptionError, f"layerwise_lr_decay: decay must be above 0 and at most 1; received {decay!r}.")
    last = len(layers) - 1
    return [Group(layer, lr_scale=float(decay) ** (last - i)) for i, layer in enumerate(layers)]


def _name_of(match: object) -> str:
    """A default group name: `"*.bias"` -> bias; for a function its name."""
    if callable(match):
        text = getattr(match, "__name__", "")
        if text in ("", "<lambda>"):
            fail(UsageError, "Group: a predicate without a name needs one: ws.Group(predicate, name='small').")
        return text
    text = "_".join(match) if isinstance(match, tuple) else str(match)
    return re.sub(r"\W+", "_", text).strip("_") or "all"


def assign(groups: Sequence[Group], params: Sequence[Tensor], graph: Graph) -> list[Group | None]:
    """The group of each parameter; OptionError for a group without parameters (a frozen one may match others of the
    graph).
    """
    members = [next((g for g in groups if g.matches(p)), None) for p in params]
    for group in groups:
        frozen = group.frozen and any(group.matches(p) for p in graph.parameters.values())
        if not frozen and not any(g is group for g in members):
            _refuse_empty(group, params)
    return members


def _refuse_empty(group: Group, params: Sequence[Tensor]) -> None:
    taken = [p.name for p in params if group.matches(p)]
    names = [p.name for p in params]
    why = f"has nothing left: earlier groups have {taken}" if taken else f"matches none of the parameters {names}"
    what = " ".join(map(repr, group.patterns)) or "its predicate"
    axes = f" with ndim {group.ndim}" if group.ndim is not None else ""
    fail(OptionError, f"{group}: {what}{axes} {why}. Correct the pattern or leave the group out.")


def check_groups(kind: str, groups: object) -> tuple[Group, ...]:
    """The groups as a tuple; OptionError for two groups with the same name."""
    if not isinstance(groups, tuple | list) or not all(isinstance(g, Group) for g in groups):
        fail(UsageError, f"{kind}: groups must be a list of ws.Group(...); received {groups!r}.")
    names = [g.name for g in groups]
    for name in names:
        if names.count(name) > 1:
            fail(OptionError, f"{kind}: two groups are called {name!r}; give one of them a name: ws.Group(..., name=).")
    return tuple(groups)


def group_from_config(config: Mapping[str, Any]) -> Group:
    """The group of a `Group.to_config()`."""
    from wholestep.optim.core.config import from_plain

    arguments = {k: from_plain(v) for k, v in config.items() if k != "options"}
    return Group(**arguments, **{k: from_plain(v) for k, v in config["options"].items()})
