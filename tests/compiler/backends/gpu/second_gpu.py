"""A GPU that is not NVIDIA's: other sizes, another cost model, no libraries.  It plans and renders without a driver.

`python -m tests.compiler.backends.gpu.second_gpu` prints what planning and rendering made, and which modules it needed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.backends.gpu.cost_model import FusionCosts, GemmCosts, GpuCosts, GridCosts
from wholestep.compiler.backends.gpu.render.source import render, with_primitives
from wholestep.compiler.backends.gpu.target import WIDEST_HEAD, GpuTarget
from wholestep.compiler.backends.null import NullDevice
from wholestep.compiler.backends.reference.target import REFERENCE
from wholestep.compiler.devices import register, unregister
from wholestep.compiler.target import Fusion, Limits, Lowering, OwnPass

PASSES, GPU = "wholestep.compiler.passes", "wholestep.compiler.backends.gpu"
NAME = "other/small"
TARGET = GpuTarget(
    NAME,
    dtypes=MappingProxyType({name: name for name in ("float32", "float64", "int32", "int64", "uint8", "bool")}),
    composites=frozenset({"relu", "sigmoid", "tanh", "attention", "attention_lse", "attention_grad"}),
    costs=REFERENCE.costs,
    planner=f"{GPU}.schedule:make_plan",
    lowering=Lowering(
        windows=(
            OwnPass(f"{PASSES}.lower.image_views:channels_last_views", needed=True),
            OwnPass(f"{GPU}.pool_fusion:through_small_pools", takes_target=True),
        ),
        primitives=(OwnPass(f"{PASSES}.lower.attention_precision:adapt_attention_routines", needed=True),),
    ),
    fusion=Fusion(
        sums_in_dots=False,
        partial_sums=True,
        most_operands=32,
        pools_in_convolutions=f"{GPU}.pool_fusion:takes_pool:{NAME}",
    ),
    limits=Limits(threads=12, nearest_cache=64 << 10, cache=4 << 20, widest_head=WIDEST_HEAD),
    cost_model=GpuCosts(
        grids=GridCosts(most_blocks=384),
        gemm=GemmCosts(full_gpu_blocks=24, tiny_blocks=96, medium_blocks=12, fewest_medium_blocks=8, update_tiles=24),
        fusion=FusionCosts(launch_blocks=192, medium_blocks=24, rows=48),
    ),
)

Array = np.ndarray[Any, Any]
# Name -> model, shape of a row, are the values tokens?
NETWORKS: dict[str, tuple[Callable[[], ws.nn.Module], tuple[int, ...], bool]] = {
    "mlp": (
        lambda: ws.nn.Sequential(ws.nn.Linear(64, 32), ws.nn.LayerNorm(32), ws.nn.ReLU(), ws.nn.Linear(32, 10)),
        (64,),
        False,
    ),
    "lenet": (ws.models.lenet5, (1, 28, 28), False),
    "gpt": (lambda: ws.models.gpt2(layers=1, width=16, heads=2, vocabulary=17, context=6), (6,), True),
}
ROWS = 8  # batch size


def session_of(name: str, device: str) -> ws.Session:
    """A session that trains a network with momentum."""
    make, shape, tokens = NETWORKS[name]
    return ws.build_session(
        make(),
        inputs=ws.Spec(("batch", *shape), "int32" if tokens else "float32"),
        targets=ws.Spec(("batch", *shape) if tokens else ("batch",), "int32"),
        loss="cross_entropy",
        optimizer=ws.SGD(lr=1e-2, momentum=0.9),
        batch_size=ROWS,
        device=device,
        seed=0,
        options=ws.CompileOptions(verify=False, egraph=False, cache=False),
    )


def batch(name: str, rows: int) -> dict[str, Array]:
    """Random rows and classes."""
    _, shape, tokens = NETWORKS[name]
    rng = np.random.default_rng(rows)
    if tokens:
        return {key: rng.integers(0, 17, (rows, *shape)).astype(np.int32) for key in ("x", "labels")}
    labels = rng.integers(0, 10, rows).astype(np.int32)
    return {"x": rng.standard_normal((rows, *shape), dtype=np.float32), "labels": labels}


def main() -> None:
    register("other", TARGET, NullDevice)
    found: dict[str, Any] = {}
    for name in NETWORKS:
        plan = session_of(name, "other").plan
        source = render(plan)
        text = with_primitives(source.text, "/* primitives of the vendor */")
        found[name] = {
            "target": plan.target,
            "launches": len(source.launches),
            "functions": len(source.functions),
            "lines": text.count("\n"),
            "notes": list(plan.notes),
            "forms": sorted({k.schedule.form for k in plan.kernels}),  # type: ignore[attr-defined]
        }
    unregister("other")
    found["modules"] = sorted(name for name in sys.modules if name.startswith("wholestep.compiler.backends."))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
