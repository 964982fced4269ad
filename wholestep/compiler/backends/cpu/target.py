"""The CPU targets that plans are compiled for, and which of them this machine supports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from wholestep import platforms
from wholestep.compiler.target import Fusion, Limits, Lowering, OwnPass, Target, read_costs
from wholestep.errors import OptionError

PASSES = "wholestep.compiler.passes"
COMPUTED = ("float32", "float64", "int32", "int64", "uint8", "bool")  # each accumulates in its own type

# All CPUs share one plan: a step has the same bits on AVX2 and AVX-512, and the same loops everywhere.
PORTABLE = Target(
    "cpu/portable",
    dtypes=MappingProxyType({name: name for name in COMPUTED}),
    # Composites with a C expression of their own in render/language.py, or with a native routine.
    composites=frozenset({"relu", "sigmoid", "tanh", "attention", "attention_lse", "attention_grad"}),
    costs=read_costs(Path(__file__).parent / "costs.json"),
    stored=frozenset({"bfloat16", "float16"}),
    planner="wholestep.compiler.backends.cpu.schedule:make_plan",
    blocks_columns=True,
    lowering=Lowering(
        windows=(
            OwnPass(f"{PASSES}.lower.cast_fusion:hoist_half_casts"),
            OwnPass(f"{PASSES}.lower.cast_fusion:widen_operands", needed=True),
            OwnPass(f"{PASSES}.lower.channels_last:channels_last", needed=True),
            OwnPass(f"{PASSES}.lower.max_pooling:fuse_pool_gradients", takes_target=True),
        ),
        primitives=(
            OwnPass(f"{PASSES}.lower.cast_fusion:hoist_half_casts"),
            OwnPass(f"{PASSES}.rematerialize.cheap_values:duplicate_centered_values"),
            OwnPass(f"{PASSES}.layout.spatial_reductions:merge_spatial_sums"),
        ),
    ),
    fusion=Fusion(),
    limits=Limits(threads=2, batch_parts=16),
)
AVX2 = replace(PORTABLE, name="cpu/avx2")
AVX512 = replace(PORTABLE, name="cpu/avx512")
NEON = replace(PORTABLE, name="cpu/neon")
_WITH_BFLOAT16 = MappingProxyType({**PORTABLE.dtypes, "bfloat16": "float32"})
AVX512BF16 = replace(AVX512, name="cpu/avx512bf16", dtypes=_WITH_BFLOAT16)
NEONBF16 = replace(NEON, name="cpu/neonbf16", dtypes=_WITH_BFLOAT16)
ORDER = (AVX512BF16, AVX512, AVX2, NEONBF16, NEON, PORTABLE)  # best first
TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in ORDER})

# The features that a target's code needs, by Linux's names.
_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = _AVX2 | {"avx512f", "avx512dq", "avx512bw"}
NEEDS: Mapping[str, frozenset[str]] = {
    AVX512BF16.name: _AVX512 | {"avx512_bf16"},
    AVX512.name: _AVX512,
    AVX2.name: _AVX2,
    NEONBF16.name: frozenset({"asimd", "bf16"}),
    NEON.name: frozenset({"asimd"}),
    PORTABLE.name: frozenset(),
}


@lru_cache(maxsize=1)
def available_targets() -> tuple[Target, ...]:
    """The CPU targets whose code this machine can run, best first."""
    features = platforms.processor_features()
    return tuple(target for target in ORDER if NEEDS[target.name] <= features)


def detect_target() -> Target:
    """The best CPU target whose code this machine can run."""
    return available_targets()[0]


def check_available(target: Target) -> None:
    """Raise `OptionError` for a target whose code this machine cannot run."""
    if target.name not in [each.name for each in available_targets()]:
        usable = ", ".join(repr(t.name) for t in available_targets())
        missing = ", ".join(sorted(NEEDS[target.name] - platforms.processor_features()))
        raise OptionError(
            f"device={target.name!r}: this machine cannot run it, it lacks {missing}. Supported here: {usable}; "
            f"device='cpu' selects the first. To plan for it without running: device='null:{target.name}'."
        )
