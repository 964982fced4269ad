"""The GPUs that plans are made for; none needs to be here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from wholestep.compiler.target import Fusion, Limits, Lowering, OwnPass, Target, read_costs
from wholestep.errors import OptionError

COSTS = Path(__file__).parent / "costs"
FIRST_EARLY = 90  # the first kind of GPU whose kernels can wait for others
TF32 = "+tf32"  # behind the name of a target whose products of float32 numbers multiply in tf32
PASSES = "wholestep.compiler.passes"
GPU, BACKEND = "wholestep.compiler.backends.gpu", "wholestep.compiler.backends.cuda"

DTYPES = MappingProxyType(
    {
        **{name: name for name in ("float32", "float64", "int32", "int64", "uint8", "bool")},
        **dict.fromkeys(("bfloat16", "float16"), "float32"),
    }
)


def library_flops(name: str) -> tuple[tuple[str, int], ...]:
    """Floating-point operations from which on a library's product beats ours on the target of a name, by dtype.

    It has the better tiles and tf32; we have no wait.
    """
    single = 16_000_000 if uses_tf32(name) else 400_000_000
    return (("float32", single), ("bfloat16", 16_000_000), ("float16", 16_000_000))


def uses_tf32(name: str) -> bool:
    """Do products of float32 numbers multiply in tf32 on the target of a name?  It has 10 bits behind the point."""
    return name.endswith(TF32)


def describe(kind: str, multiprocessors: int, shared: int, cache: int, suffix: str = "") -> Target:
    """A GPU by its compute capability; the rest is the same for all."""
    asked = "_in_tf32" if suffix else ""  # of functions that know which convolutions are a library's
    costs = read_costs(COSTS / f"{kind}.json")
    return Target(
        f"cuda/{kind}{suffix}",
        dtypes=DTYPES,
        composites=frozenset({"relu", "sigmoid", "tanh", "attention", "attention_lse", "attention_grad"}),
        costs=costs.in_tf32() if suffix else costs,
        planner=f"{GPU}.schedule:make_plan",
        lowering=Lowering(
            windows=(
                OwnPass(f"{PASSES}.lower.channels_last:channels_last", needed=True),
                OwnPass(f"{GPU}.convolution.pool_fusion:through_small_pools", takes_target=True),
                OwnPass(f"{GPU}.convolution.casts:fill_channels"),
                OwnPass(f"{GPU}.convolution.casts:round_images"),
            ),
            primitives=(
                OwnPass(f"{PASSES}.lower.attention_precision:with_results", needed=True),
                OwnPass(f"{PASSES}.lower.half_gemm_outputs:round_products"),
                OwnPass(f"{PASSES}.rematerialize.cheap_values:remake"),
                OwnPass(f"{PASSES}.layout.spatial_reductions:sum_all_pixels"),
                OwnPass(f"{PASSES}.layout.spatial_reductions:variances_in_one_pass"),
                OwnPass(f"{PASSES}.layout.spatial_reductions:sum_pixels"),
                OwnPass(f"{PASSES}.rematerialize.late_readers:read_again"),
                OwnPass(f"{GPU}.convolution.casts:copy_operands", takes_target=True),
            ),
        ),
        # Our own products take any epilogue; those of a library are plain: what follows them joins the next pass.
        fusion=Fusion(
            plain_products=library_flops(suffix),
            sums_in_dots=False,
            partial_sums=True,
            most_operands=32,  # NVRTC takes half a minute for a kernel of hundreds; as many small ones share a launch
            pools_in_convolutions=f"{GPU}.convolution.pool_fusion:takes_pool{asked}",
            convolution_epilogues=f"{BACKEND}.libraries.cudnn_convolution:takes_epilogue{asked}",
        ),
        limits=Limits(
            threads=multiprocessors,
            nearest_cache=shared,
            cache=cache,
            widest_head=512,
        ),
    )


_SIZES = {  # newest first: multiprocessors, bytes of shared memory of a block, bytes of the cache behind it
    "sm_90": (132, 227 << 10, 50 << 20),
    "sm_89": (128, 99 << 10, 72 << 20),
    "sm_86": (82, 99 << 10, 6 << 20),
    "sm_80": (108, 163 << 10, 40 << 20),
}
_DESCRIBED = tuple(describe(kind, *sizes) for kind, sizes in _SIZES.items())
_IN_TF32 = tuple(describe(kind, *sizes, suffix=TF32) for kind, sizes in _SIZES.items())
TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in (*_DESCRIBED, *_IN_TF32)})


def kind_of(target: Target) -> str:
    """What NVIDIA calls it: "sm_90"."""
    return kind_of_name(target.name)


def kind_of_name(target: str) -> str:
    """The same of a target's name."""
    return target.partition("/")[2].removesuffix(TF32)


def begins_early(architecture: str) -> bool:
    """Does code for "sm_90" wait by itself for launches before it, so that it may begin while they end?"""
    return int(architecture.partition("_")[2]) >= FIRST_EARLY


def target_of(capability: tuple[int, int]) -> Target:
    """The target of a GPU: its own, or the newest that is not newer, whose code the driver compiles further."""
    for target in _DESCRIBED:
        kind = kind_of(target).removeprefix("sm_")
        if (int(kind[:-1]), int(kind[-1])) <= capability:
            return target
    oldest = _DESCRIBED[-1].name
    raise OptionError(
        f"a GPU of compute capability {capability} is older than {oldest}, the oldest that is planned for."
    )
