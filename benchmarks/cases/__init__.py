"""The networks that are measured, one file each."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.cases import bigmlp, gpt, lenet, lstm, mlp, resnet

CASES: dict[str, Case] = {
    case.name: case for case in (mlp.CASE, bigmlp.CASE, gpt.CASE, lenet.CASE, lstm.CASE, resnet.CASE)
}
