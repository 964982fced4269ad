"""The networks that are measured, one file each."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.case import Case, Cell
from benchmarks.cases import bigmlp, gpt, lenet, lstm, mlp, resnet

CASES: dict[str, Case] = {
    case.name: case for case in (mlp.CASE, bigmlp.CASE, gpt.CASE, lenet.CASE, lstm.CASE, resnet.CASE)
}

# For the cost of an update inside a step: the same network with the update, and with stored but unused gradients.
INSIDE: dict[str, Case] = {
    f"adamw_in_{case.name}": replace(
        case,
        name=f"adamw_in_{case.name}",
        cells=(Cell("adamw", batch, "adamw"), Cell("none", batch, "none")),
    )
    for case, batch in ((bigmlp.CASE, 256), (gpt.CASE, 16))
}
