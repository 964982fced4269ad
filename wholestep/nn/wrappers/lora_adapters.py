"""LoRA: freeze the model and add a trained low-rank product to each of its linear layers (arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, ShapeError, UsageError
from wholestep.nn.derived import make_subclass
from wholestep.nn.layers.attention import MultiHeadAttention
from wholestep.nn.layers.linear import Dropout, Linear, positive
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import Parameter
from wholestep.records import dataclass

Array = np.ndarray[Any, Any]
PREFIX = "base_model.model."  # prefix of the names in peft's files


@dataclass(frozen=True)
class Adaptable:
    """A kind of layer to which a low-rank product can be added."""

    weight: str  # the parameter to which the product is added
    outputs_first: bool  # shape (outputs, inputs) rather than (inputs, outputs)
    method: str  # the method, called with (self, x, ...), that uses the weight


def _kinds() -> dict[type[Module], Adaptable]:
    from wholestep.models.gpt2 import Projection

    return {
        Linear: Adaptable("weight", True, "forward"),
        MultiHeadAttention: Adaptable("in_proj_weight", True, "_project"),
        Projection: Adaptable("weight", False, "forward"),
    }


def lora(
    model: Module,
    rank: int = 8,
    targets: str | Sequence[str] = "*",
    alpha: float | None = None,
    dropout: float | Switchable = 0.0,
) -> Adapters:
    """Freeze a model and train x·Aᵀ·Bᵀ·alpha/rank in addition to its linear layers; B starts as zeros, so the outputs
    do not change at first.

    The model itself is changed: fit, predict and save it as before.  Its linear layers, the projections of
    `ws.nn.MultiHeadAttention` and those of `ws.models.gpt2` can have adapters.  Their weights are called
    `<layer>.lora_A.weight` and `<layer>.lora_B.weight`, as in peft.

    Args:
        rank: the rank of the product: A is (rank, inputs), B (outputs, rank).
        targets: which layers, as patterns of their paths (`"h.*.attn.c_attn"`) or their last parts (`"out_proj"`).
        alpha: the product is scaled by alpha / rank; by default `rank`, for a scale of 1.
        dropout: the rate of dropout of the input of A, in training.

    Returns:
        The adapters: `.save("a.safetensors")`, `.load(...)`, `.merge()` into the weights, `.remove()`.

    Example: `adapters = ws.nn.lora(model, rank=4, targets=["out_proj"])`.
    """
    positive("lora", rank=rank)
    patterns = (targets,) if isinstance(targets, str) else tuple(targets)
    kinds, open_ones = _kinds(), dict[str, Module]()
    for path, part in model.named_modules():
        is_adapter = path.rpartition(".")[2] in ("lora_A", "lora_B")
        if type(part) in kinds and part not in open_ones.values() and not is_adapter:
            open_ones[path] = part
    paths = {path: part for path, part in open_ones.items() if any(_matches(path, p) for p in patterns)}
    if not paths:
        listed = ", ".join(path or "the model itself" for path in open_ones)
        fail(
            OptionError,
            f"lora: no linear layer without an adapter matches {', '.join(map(repr, patterns))}; there are: "
            f"{listed or 'none'}.",
        )
    frozen = [owned for owned in model.parameters().values() if not owned.frozen]
    for owned in frozen:
        owned.frozen = True
    scale = (rank if alpha is None else alpha) / rank
    for part in paths.values():
        _adapt(part, kinds[type(part)], rank, scale, dropout)
    return Adapters(model, rank, scale, paths, tuple(frozen))


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or path.endswith(f".{pattern}") or path == pattern


def _adapt(part: Any, how: Adaptable, rank: int, scale: float, dropout: float | Switchable) -> None:
    owned: Parameter = part.named_arrays()[how.weight]
    outputs, inputs = owned.shape if how.outputs_first else owned.shape[::-1]
    part.lora_A = Linear(inputs, rank, bias=False, dtype=owned.dtype)
    part.lora_B = Linear(rank, outputs, bias=False, dtype=owned.dtype, init=0.0)
    if owned.splitting is not None:
        from wholestep.nn.wrappers.tensor_parallel import split_beside  # imported here because few models are split

        split_beside(owned.splitting, how.outputs_first, part.lora_A, part.lora_B)
    part.lora_A.trainable = part.lora_B.trainable = True  # even if the layer is frozen
    part.lora_dropout = None if not isinstance(dropout, Switchable) and dropout == 0 else Dropout(dropout)
    object.__setattr__(part, "__class__", _adapted_class(type(part), how.method, scale))


def _adapted_class(kind: type[Module], method: str, scale: float) -> type[Module]:
    """A subclass of a layer whose method adds the product of lora_A and lora_B to its result."""
    plain: Callable[..., Tensor] = getattr(kind, method)

    def forward(self: Any, x: Tensor, *bounds: int) -> Tensor:
        small = self.lora_A(x if self.lora_dropout is None else self.lora_dropout(x))
        if not bounds:
            update: Tensor = self.lora_B(small) * scale
            return plain(self, x) + update
        first, last = bounds  # the requested rows of the weight
        update = (small @ self.lora_B.weight[first:last].T) * scale
        return plain(self, x, *bounds) + update

    return make_subclass(kind, {method: forward, "plain_kind": kind}, _adapted_class, kind, method, scale)


class Adapters:
    """The low-rank products of a model: what `ws.nn.lora` returns."""

    def __init__(
        self, model: Module, rank: int, scale: float, paths: Mapping[str, Module], frozen: tuple[Parameter, ...]
    ) -> None:
        self.model, self.rank, self.scale = model, rank, scale
        self._paths, self._frozen = dict(paths), frozen

    @property
    def paths(self) -> list[str]:
        """The paths of the layers with an adapter."""
        return list(self._paths)

    def state_dict(self) -> dict[str, Array]:
        """Copies of A and B of every layer, by name; nothing else of the model."""
        self._need()
        whole = self.model.state_dict()
        return {name: whole[name] for name in self._names()}

    def save(self, path: str | PathLike[str]) -> None:
        """Write only A and B, as safetensors under peft's names.

        Example: `adapters.save("adapter_model.safetensors")`.
        """
        from wholestep.nn.state.weights import save_arrays

        save_arrays({PREFIX + name: array for name, array in self.state_dict().items()}, path)

    def load(self, path: str | PathLike[str]) -> None:
        """Read a file that `save` or peft wrote; every A and B must be present and fit."""
        from wholestep.nn.state.state_dict_diff import SHOWN, OtherShape
        from wholestep.nn.state.weight_files import read_weights

        arrays = {name.removeprefix(PREFIX): array for name, array in read_weights(Path(path)).items()}
        wanted = self._names()
        if set(arrays) != set(wanted):
            missing, strange = sorted(set(wanted) - set(arrays)), sorted(set(arrays) - set(wanted))
            raise UsageError(
                f"{path} does not hold the adapters of this model; nothing was loaded. Missing: "
                f"{', '.join(missing) or 'none'}; not of the model: {', '.join(strange) or 'none'}. Give ws.nn.lora "
                "the rank and targets that they were trained with."
            )
        shapes = {name: owned.shape for name, owned in self.model.all_names()}
        other = [OtherShape(name, array.shape, shapes[name]) for name, array in arrays.items()]
        if differing := [str(o) for o in other if o.in_file != o.in_model]:
            raise ShapeError(
                f"{path} holds adapters of another size; nothing was loaded. {'; '.join(differing[:SHOWN])}. Give "
                "ws.nn.lora the rank that they were trained with."
            )
        self.model.load_state_dict(arrays, strict=False)

    def merge(self) -> Module:
        """Add the products to the weights and remove them: the model computes the same without them.

        Example: `adapters.merge().save("model.safetensors")`.
        """
        self._need()
        whole, kinds, merged = self.model.state_dict(), _kinds(), {}
        for path, part in self._paths.items():
            how, before = kinds[part.plain_kind], f"{path}." if path else ""
            a, b = (whole[f"{before}lora_{m}.weight"].astype(np.float64) for m in "AB")
            product = self.scale * (b @ a)
            merged[before + how.weight] = whole[before + how.weight] + (product if how.outputs_first else product.T)
        self.remove()
        self.model.load_state_dict(merged, strict=False)
        return self.model

    def remove(self) -> Module:
        """Remove the adapters and unfreeze the weights: the model is as before `ws.nn.lora`."""
        self._need()
        for part in self._paths.values():
            object.__setattr__(part, "__class__", part.plain_kind)
            for name in ("lora_A", "lora_B", "lora_dropout"):
                delattr(part, name)
        for owned in self._frozen:
            owned.frozen = False
        self._paths = {}
        return self.model

    def _names(self) -> list[str]:
        return [f"{path}.lora_{m}.weight".removeprefix(".") for path in self._paths for m in "AB"]

    def _need(self) -> None:
        if not self._paths:
            raise UsageError("these adapters were merged or removed already; make new ones: ws.nn.lora(model).")

    def __repr__(self) -> str:
        trained = sum(p.elements for p in self.model.parameters().values() if not p.frozen)
        every = sum(p.elements for p in self.model.parameters().values())
        layers = f"{len(self._paths)} layers, rank {self.rank}"
        return f"Adapters({layers}: {trained:,} of {every:,} parameters are trained, {100 * trained / every:.2g} %)"
