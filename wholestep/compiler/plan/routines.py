"""The native routines of a target: one function each, cluster -> kernel.  What a routine is, is in call.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wholestep.compiler.plan.attention import emit_attention, emit_attention_grad
from wholestep.compiler.plan.buffers import Buffers
from wholestep.compiler.plan.exchange import emit_exchange
from wholestep.compiler.plan.fuse import Cluster
from wholestep.compiler.plan.kernel import Kernel

EMIT_CALL: Mapping[str, Callable[[int, Cluster, Buffers], Kernel]] = {
    "attention": emit_attention,
    "attention_grad": emit_attention_grad,
    "exchange": emit_exchange,
}
