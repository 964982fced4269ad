"""Tensor parallelism: `split=` marks weights, and `Workers(model=2)` divides the marked ones among workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wholestep.compiler.frontend.trace import fail, user_line
from wholestep.compiler.ir.graph import SourceLine
from wholestep.compiler.ir.state_partition import AxisSplit
from wholestep.errors import OptionError
from wholestep.records import dataclass

COLUMNS, ROWS, HEADS = "columns", "rows", "heads"


@dataclass(frozen=True)
class Splitting:
    """The division of a parameter: along an axis, within each of its blocks, at whole units."""

    axis: int
    blocks: int
    units: int  # units of the smallest block: features, or heads
    what: str  # name of the units in errors
    layer: str
    line: SourceLine
    widths: tuple[int, ...] = ()  # widths of the blocks, if they differ

    def among(self, ranks: int) -> AxisSplit:
        """The local part of this splitting for the given number of workers."""
        return AxisSplit(self.axis, self.blocks, ranks, self.widths)

    def need(self, name: str, ranks: int) -> None:
        """Raise OptionError unless the parameter can be divided among this number of workers."""
        if self.units % ranks:
            raise OptionError(
                f"{self.layer}: the {self.units} {self.what} of {name!r} do not divide among {ranks} workers; choose "
                f"a multiple of {ranks}, another model=, or leave split= out.{self.line.error_note}"
            )


def mark_split(
    owned: Any, axis: int, layer: str, what: str, units: int = 0, blocks: int = 1, widths: tuple[int, ...] = ()
) -> Any:
    """Mark a parameter to be split; `units` are its features along the axis by default."""
    count = units or owned.shape[axis] // blocks
    owned.splitting = Splitting(axis, blocks, count, what, layer, user_line(), widths)
    return owned


def need_choice(layer: str, choice: object, *supported: str) -> Any:
    """The value of `split=`, which must be a mode that the layer supports; True selects the only mode."""
    if choice is True and len(supported) == 1:
        return supported[0]
    if choice not in supported:
        fail(OptionError, f"{layer}: split={choice!r}; expected {' or '.join(map(repr, supported))}, or None.")
    return choice


def split_linear(layer: Any, choice: str) -> None:
    """Split a `Linear` by its outputs ("columns", with its bias) or by its inputs ("rows")."""
    kind = f"Linear({layer.inputs}, {layer.outputs})"
    split, owned = need_choice(kind, choice, COLUMNS, ROWS), layer.named_arrays()
    mark_split(owned["weight"], 0 if split == COLUMNS else 1, kind, "outputs" if split == COLUMNS else "inputs")
    if split == COLUMNS and "bias" in owned:
        mark_split(owned["bias"], 0, kind, "outputs")


def split_attention(layer: Any, choice: object) -> None:
    """Split a `MultiHeadAttention` by heads: query, key and value by outputs, the output projection by inputs."""
    kind = f"MultiHeadAttention({layer.width}, {layer.heads})"
    need_choice(kind, choice, HEADS)
    owned, shared = layer.named_arrays(), layer.kv_heads
    of_each = tuple(heads * layer.head_width for heads in (layer.heads, shared, shared))
    for name in ("in_proj_weight", "in_proj_bias"):
        if name in owned and shared == layer.heads:
            mark_split(owned[name], 0, kind, HEADS, layer.heads, blocks=3)
        elif name in owned:  # a key head belongs to the worker of the query heads that use it
            mark_split(owned[name], 0, kind, f"kv_{HEADS}", shared, blocks=3, widths=of_each)
    mark_split(owned["out_proj.weight"], 1, kind, HEADS, layer.heads)


def split_gpt2(model: Any, heads: int) -> None:
    """Split a GPT-2: attention of each block by heads, the MLP by its inner features."""
    for block in model.h:
        up, down = block.attn.named_arrays(), block.mlp.named_arrays()
        mark_split(up["c_attn.weight"], 1, "gpt2", HEADS, heads, blocks=3)
        mark_split(up["c_attn.bias"], 0, "gpt2", HEADS, heads, blocks=3)
        mark_split(up["c_proj.weight"], 0, "gpt2", HEADS, heads)
        mark_split(down["c_fc.weight"], 1, "gpt2", "inner features")
        mark_split(down["c_fc.bias"], 0, "gpt2", "inner features")
        mark_split(down["c_proj.weight"], 0, "gpt2", "inner features")


def split_beside(of: Splitting, outputs_first: bool, a: Any, b: Any) -> None:
    """Split the low-rank product of a weight in the same way as the weight: lora_B by outputs, or lora_A by inputs."""
    of_outputs = of.axis == (0 if outputs_first else 1)
    owned = (b if of_outputs else a).named_arrays()["weight"]
    owned.splitting = replace(of, axis=0 if of_outputs else 1)


def split_llama(model: Any, heads: int, shared: int) -> None:
    """Split a Llama: query heads are on the worker of the key heads that they use."""
    for layer in model.model.layers:
        owned = layer.named_arrays()
        for name, axis, units in (("q", 0, heads), ("k", 0, shared), ("v", 0, shared), ("o", 1, heads)):
            mark_split(owned[f"self_attn.{name}_proj.weight"], axis, "llama", HEADS, units)
        for name, axis in (("gate", 0), ("up", 0), ("down", 1)):
            mark_split(owned[f"mlp.{name}_proj.weight"], axis, "llama", "inner features")
