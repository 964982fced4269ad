"""The GPUs that plans are made for; none needs to be here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from wholestep.compiler.target import Fusion, Limits, Lowering, OwnPass, Target, read_costs
from wholestep.errors import OptionError

COSTS = Path(__file__).parent / "costs"
PASSES = "wholestep.compiler.passes"

DTYPES = MappingProxyType(
    {
        **{name: name for name in ("float32", "float64", "int32", "int64", "uint8", "bool")},
        **dict.fromkeys(("bfloat16", "float16"), "float32"),
    }
)


def describe(kind: str, multiprocessors: int, shared: int, cache: int) -> Target:
    """A GPU by its compute capability; the rest is the same for all."""
    return Target(
        f"cuda/{kind}",
        dtypes=DTYPES,
        composites=frozenset({"relu", "sigmoid", "tanh"}),
        costs=read_costs(COSTS / f"{kind}.json"),
        planner="wholestep.compiler.backends.cuda.schedule:make_plan",
        lowering=Lowering(
            windows=(OwnPass(f"{PASSES}.channels_last:channels_last", needed=True),),
            primitives=(OwnPass(f"{PASSES}.remake:remake"), OwnPass(f"{PASSES}.pixels:sum_pixels")),
        ),
        # Our own products take any epilogue; those of a library are plain, and a pass of its own follows them.
        fusion=Fusion(sums_in_dots=False, pools_in_convolutions=False),
        limits=Limits(
            threads=multiprocessors,
            nearest_cache=shared,
            cache=cache,
        ),
    )


_DESCRIBED = (
    describe("sm_90", multiprocessors=132, shared=227 << 10, cache=50 << 20),
    describe("sm_89", multiprocessors=128, shared=99 << 10, cache=72 << 20),
    describe("sm_86", multiprocessors=82, shared=99 << 10, cache=6 << 20),
    describe("sm_80", multiprocessors=108, shared=163 << 10, cache=40 << 20),
)
TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _DESCRIBED})


def target_of(capability: tuple[int, int]) -> Target:
    """The target of a GPU: its own, or the newest that is not newer, whose code the driver compiles further."""
    for target in _DESCRIBED:
        kind = target.name.partition("/")[2].removeprefix("sm_")
        if (int(kind[:-1]), int(kind[-1])) <= capability:
            return target
    oldest = _DESCRIBED[-1].name
    raise OptionError(
        f"a GPU of compute capability {capability} is older than {oldest}, the oldest that is planned for."
    )
