"""Dispatch table of routine calls: the function that lowers a cluster to each routine (see routine_ops.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wholestep.compiler.plan.fusion.clusters import Cluster
from wholestep.compiler.plan.lower.attention import emit_attention, emit_attention_grad
from wholestep.compiler.plan.lower.collective_kernels import emit_exchange
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.model.kernel import Kernel

EMIT_CALL: Mapping[str, Callable[[int, Cluster, Buffers], Kernel]] = {
    "attention": emit_attention,
    "attention_grad": emit_attention_grad,
    "exchange": emit_exchange,
}
