"""Target descriptions of NVIDIA GPUs; a plan for one can be computed on a machine without it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from wholestep.compiler.backends.gpu.target import WIDEST_HEAD, GpuTarget
from wholestep.compiler.target import Fusion, Limits, Lowering, OwnPass, Target, read_costs
from wholestep.errors import OptionError

COSTS = Path(__file__).parent / "costs"
FIRST_EARLY = 90  # first compute capability with programmatic dependent launch
TF32 = "+tf32"  # suffix of a target's name whose float32 products and convolutions are computed in tf32
TF32_CONVOLUTIONS = "+tf32conv"  # suffix of one whose convolutions alone are: PyTorch's default
PASSES = "wholestep.compiler.passes"
GPU, BACKEND = "wholestep.compiler.backends.gpu", "wholestep.compiler.backends.cuda"

DTYPES = MappingProxyType(
    {
        **{name: name for name in ("float32", "float64", "int32", "int64", "uint8", "bool")},
        **dict.fromkeys(("bfloat16", "float16"), "float32"),
    }
)


def describe(kind: str, multiprocessors: int, shared: int, cache: int, suffix: str = "") -> GpuTarget:
    """The target of a compute capability; with a suffix, its variant that computes float32 in tf32."""
    costs, name = read_costs(COSTS / f"{kind}.json"), f"cuda/{kind}{suffix}"
    return GpuTarget(
        name,
        dtypes=DTYPES,
        composites=frozenset({"relu", "sigmoid", "tanh", "attention", "attention_lse", "attention_grad"}),
        costs=costs.in_tf32() if suffix == TF32 else costs,
        planner=f"{GPU}.schedule:make_plan",
        advice=f"{GPU}.efficiency.advice:slow_kernels",
        lowering=Lowering(
            windows=(
                OwnPass(f"{PASSES}.lower.sparse_resampling:resample_by_gathers"),
                OwnPass(f"{PASSES}.lower.image_views:channels_last_views", needed=True),
                OwnPass(f"{GPU}.window_products:multiply_disjoint_windows", takes_target=True),
                OwnPass(f"{GPU}.pool_fusion:through_small_pools", takes_target=True),
                OwnPass(f"{BACKEND}.libraries.convolution_casts:fill_channels", takes_target=True),
                OwnPass(f"{BACKEND}.libraries.convolution_casts:round_images"),
            ),
            primitives=(
                OwnPass(f"{PASSES}.lower.attention_precision:adapt_attention_routines", needed=True),
                OwnPass(f"{PASSES}.lower.half_gemm_outputs:round_products"),
                OwnPass(f"{PASSES}.rematerialize.cheap_values:duplicate_centered_values"),
                OwnPass(f"{PASSES}.layout.spatial_reductions:merge_batch_spatial_sums"),
                OwnPass(f"{PASSES}.layout.spatial_reductions:variances_in_one_pass"),
                OwnPass(f"{PASSES}.layout.spatial_reductions:merge_spatial_sums"),
                OwnPass(f"{PASSES}.rematerialize.tap_gathers:gather_in_readers"),
                OwnPass(f"{PASSES}.rematerialize.late_readers:rematerialize_late_reads"),
                OwnPass(f"{BACKEND}.libraries.convolution_casts:copy_operands", takes_target=True),
            ),
        ),
        # Our GEMMs fuse any epilogue; library GEMMs have none: their consumers are fused into the next kernel.
        fusion=Fusion(
            # FLOPs from which on cuBLASLt is faster than our kernels: it has better tiles and tf32, ours avoid its
            # launch gap.
            plain_products=(
                ("float32", 16_000_000 if suffix == TF32 else 400_000_000),
                ("bfloat16", 16_000_000),
                ("float16", 16_000_000),
            ),
            sums_in_dots=False,
            partial_sums=True,
            most_operands=32,  # NVRTC needs half a minute for hundreds; horizontal fusion joins the smaller kernels
            pools_in_convolutions=f"{GPU}.pool_fusion:takes_pool:{name}",
            convolution_epilogues=f"{BACKEND}.libraries.cudnn_convolution:takes_epilogue:{name}",
        ),
        limits=Limits(
            threads=multiprocessors,
            nearest_cache=shared,
            cache=cache,
            widest_head=WIDEST_HEAD,
        ),
        tensor_cores=True,
        tf32=suffix == TF32,
        tf32_convolutions=bool(suffix),
        libraries=f"{BACKEND}.libraries.library_calls:LIBRARIES",
    )


_SIZES = {  # newest first: multiprocessors, bytes of shared memory per block, bytes of L2 cache
    "sm_90": (132, 227 << 10, 50 << 20),
    "sm_89": (128, 99 << 10, 72 << 20),
    "sm_86": (82, 99 << 10, 6 << 20),
    "sm_80": (108, 163 << 10, 40 << 20),
}
_DESCRIBED = tuple(describe(kind, *sizes) for kind, sizes in _SIZES.items())
_VARIANTS = tuple(
    describe(kind, *sizes, suffix=suffix) for suffix in (TF32, TF32_CONVOLUTIONS) for kind, sizes in _SIZES.items()
)
TARGETS: Mapping[str, GpuTarget] = MappingProxyType({target.name: target for target in (*_DESCRIBED, *_VARIANTS)})


def kind_of(target: Target) -> str:
    """NVIDIA's name of the architecture: "sm_90"."""
    return kind_of_name(target.name)


def kind_of_name(target: str) -> str:
    """NVIDIA's name of the architecture, from a target's name."""
    return target.partition("/")[2].partition("+")[0]


def begins_early(architecture: str) -> bool:
    """May a kernel for "sm_90" start before its predecessor ends (programmatic dependent launch)?"""
    return int(architecture.partition("_")[2]) >= FIRST_EARLY


def target_of(capability: tuple[int, int]) -> Target:
    """The target of a GPU: its own, or the newest older one, whose code the driver can translate."""
    for target in _DESCRIBED:
        kind = kind_of(target).removeprefix("sm_")
        if (int(kind[:-1]), int(kind[-1])) <= capability:
            return target
    oldest = _DESCRIBED[-1].name
    raise OptionError(f"a GPU of compute capability {capability} is older than {oldest}, the oldest supported target.")
