"""Training in each framework.  A worker imports only the module of the framework that it measures."""

from __future__ import annotations

OURS = "wholestep"
OURS_RANKS = "wholestep_ranks"  # Wholestep as several processes
OURS_FLOAT32 = "wholestep_float32"  # Wholestep in float32, if a half precision is measured

# contender -> the module under benchmarks.frameworks that has `start(contender, case, cell, threads) -> Trainer`
MODULES: dict[str, str] = {
    OURS: "with_wholestep",
    OURS_FLOAT32: "with_wholestep",
    OURS_RANKS: "with_wholestep",
    "torch_eager": "with_torch",
    "torch_compile": "with_torch",
    "torch_channels_last": "with_torch",
    "torch_ddp": "with_torch_ddp",
    "torch_ddp_compile": "with_torch_ddp",
    "jax": "with_jax",
    "sklearn": "with_sklearn",
}
RANKS = (OURS_RANKS, "torch_ddp", "torch_ddp_compile")  # contenders that run as several processes
PEERS: tuple[str, ...] = tuple(name for name in MODULES if name not in (OURS, OURS_FLOAT32, *RANKS))
HALF_PEERS = tuple(name for name in PEERS if MODULES[name] == "with_torch")  # with autocast

# contender -> the entry of `Case.models` that it trains
FRAMEWORKS: dict[str, str] = {name: module.removeprefix("with_") for name, module in MODULES.items()}
FRAMEWORKS["torch_channels_last"] = "torch_channels_last"  # image networks only
