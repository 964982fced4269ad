"""Optimizers: frozen descriptions that record their update as tensor expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.lazy import postponed
from wholestep.optim.base import Optimizer
from wholestep.optim.groups import Group
from wholestep.optim.on_graph import AdamOptimizer, SGDGraph, SGDUpdate, sgd, sgd_on_graph
from wholestep.optim.options import Runtime, runtime
from wholestep.optim.sgd import SGD

if TYPE_CHECKING:
    from wholestep.optim.adafactor import Adafactor
    from wholestep.optim.adam import Adam, AdamW, AMSGrad
    from wholestep.optim.adam_family import NAdam, RAdam
    from wholestep.optim.averages import averaged, raw_weights
    from wholestep.optim.lamb import LAMB
    from wholestep.optim.lion import Lion
    from wholestep.optim.muon import Muon
    from wholestep.optim.rmsprop import Adagrad, RMSprop
    from wholestep.optim.sam import SAM
    from wholestep.optim.techniques import (
        clip_by_global_norm,
        clip_by_norm,
        clip_by_value,
        count_nonfinite,
        global_norm,
    )
    from wholestep.optim.wrappers import EMA, Lookahead

_HOMES = {
    "adafactor": ["Adafactor"],
    "adam": ["Adam", "AdamW", "AMSGrad"],
    "adam_family": ["NAdam", "RAdam"],
    "lamb": ["LAMB"],
    "lion": ["Lion"],
    "muon": ["Muon"],
    "rmsprop": ["Adagrad", "RMSprop"],
    "sam": ["SAM"],
    "techniques": ["clip_by_global_norm", "clip_by_norm", "clip_by_value", "count_nonfinite", "global_norm"],
    "wrappers": ["EMA", "Lookahead"],
    "averages": ["averaged", "raw_weights"],
}
if not TYPE_CHECKING:  # a checker sees the imports above
    __getattr__ = postponed(__name__, _HOMES)

__all__ = [
    "EMA",
    "LAMB",
    "SAM",
    "SGD",
    "AMSGrad",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamOptimizer",
    "AdamW",
    "Group",
    "Lion",
    "Lookahead",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Runtime",
    "SGDGraph",
    "SGDUpdate",
    "averaged",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "count_nonfinite",
    "global_norm",
    "raw_weights",
    "runtime",
    "sgd",
    "sgd_on_graph",
]
