"""The target of the reference backend: every dtype and every op that a plan may contain; sums in float64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from wholestep.compiler.target import Lowering, OwnPass, Target, read_costs

INTEGERS = ("int32", "int64", "uint8", "bool")
FLOATS = ("float32", "float64", "bfloat16", "float16")

REFERENCE = Target(
    "reference",
    dtypes=MappingProxyType({**{name: name for name in INTEGERS}, **dict.fromkeys(FLOATS, "float64")}),
    composites=frozenset({"relu", "sigmoid", "tanh", "attention", "attention_lse", "attention_grad"}),
    costs=read_costs(Path(__file__).parent / "costs.json"),
    lowering=Lowering(windows=(OwnPass("wholestep.compiler.passes.lower.channels_last:channels_last", needed=True),)),
)
TARGETS: Mapping[str, Target] = MappingProxyType({REFERENCE.name: REFERENCE})
