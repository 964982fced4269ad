"""Rows for the functions that `ws.export_onnx` writes in place of ops without an ONNX operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import record
from wholestep.compiler.ir import attrs as at
from wholestep.interop.onnx.read.reading import dtype_name
from wholestep.interop.onnx.read.sizes import extents
from wholestep.interop.onnx.read.table import Array, onnx_op

DOMAIN = "wholestep"


def _plain(op: str) -> Callable[..., Tensor]:
    def row(*operands: Tensor) -> Tensor:
        return Tensor(record(op, [t.node for t in operands]), common_graph(*operands))

    return row


for _op in ("exp2", "expm1", "log2", "log1p", "silu", "bce_with_logits", "cross_entropy"):
    onnx_op(_op, domain=DOMAIN)(_plain(_op))


@onnx_op("mod", domain=DOMAIN)
def mod(x: Tensor, y: Tensor) -> Tensor:
    return ws.mod(x, y)


@onnx_op("iota", domain=DOMAIN, static=("shape",))
def iota(shape: Array, *, axis: int, dtype: int) -> Tensor:
    return ws.iota(tuple(extents(shape)), axis, dtype_name(dtype))


@onnx_op("argmax", domain=DOMAIN)
def argmax(x: Tensor, *, axis: int) -> Tensor:
    return x.argmax(axis)


@onnx_op("scatter_add", domain=DOMAIN, static=("shape",))
def scatter_add(updates: Tensor, index: Tensor, shape: Array) -> Tensor:
    return ws.scatter_add(updates, index, extents(shape)[0])


def _norm(op: str) -> Callable[..., Tensor]:
    def row(*operands: Tensor, eps: float) -> Tensor:
        return Tensor(record(op, [t.node for t in operands], at.NormAttrs(eps)), common_graph(*operands))

    return row


for _op, _many in (("layer_norm", 0), ("rms_norm", 0), ("rms_norm", 1), ("batch_norm", 0), ("batch_norm", 2)):
    onnx_op(f"{_op}{_many or ''}", domain=DOMAIN)(_norm(_op))


@onnx_op("group_norm", "group_norm2", domain=DOMAIN)
def group_norm(*operands: Tensor, eps: float, groups: int) -> Tensor:
    return Tensor(
        record("group_norm", [t.node for t in operands], at.GroupNormAttrs(groups, eps)), common_graph(*operands)
    )


def _attention(causal: bool) -> Callable[..., Tensor]:
    def row(*operands: Tensor, scale: float) -> Tensor:
        usual = 1.0 / math.sqrt(int(operands[0].shape[-1]))
        scale = usual if np.float32(usual) == np.float32(scale) else scale  # the file stores float32
        attrs = at.AttentionAttrs(causal, scale)
        return Tensor(record("attention", [t.node for t in operands], attrs), common_graph(*operands))

    return row


for _grouped in ("", "grouped_"):
    for _causal in ("", "causal_"):
        for _masked in ("", "masked_"):
            for _rank in ("", "2", "3", "5"):
                _name = f"{_grouped}{_causal}{_masked}attention{_rank}"
                onnx_op(_name, domain=DOMAIN)(_attention(bool(_causal)))
