"""Measures the cost table of the e-graph with our own kernels, and writes the table that is shipped.

    python -m benchmarks.calibrate                 prints the table
    python -m benchmarks.calibrate --write         replaces wholestep/compiler/backends/cpu/costs.json
    python -m benchmarks.calibrate --device cuda   the same on a GPU; --write replaces backends/cuda/costs/sm_90.json,
                                                   and those of other GPUs by the ratios of NVIDIA's data sheets

Run it on a quiet machine, once per target and whenever kernels get much faster; the table is data, so that the same
graph gives the same plan everywhere.  One thread, float32.  The price of an op is the time that copies of it add to an
otherwise equal kernel, so it includes neither Python nor loads and stores.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import wholestep as ws

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "wholestep" / "compiler" / "backends" / "cpu" / "costs.json"
ORIGIN = "measured: python -m benchmarks.calibrate, one thread, float32"
GPUS = ROOT / "wholestep" / "compiler" / "backends" / "cuda" / "costs"
CALLS, ROUNDS = 12, 15


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements: larger ones give more precise numbers."""

    shape: tuple[int, int]  # elements of a tensor on which ops are measured
    copies: int  # calls of an op in one kernel
    large: tuple[int, int]  # elements of a tensor that does not fit into the inner caches
    product: int  # rows, columns and depth of a matrix product
    passes: int  # reductions in a chain


SIZES = {
    "cpu": Sizes((128, 256), 6, (1024, 1024), 512, 8),
    # Enough elements for all multiprocessors, and so many calls of an op that memory bandwidth is not the limit.
    "cuda": Sizes((2048, 4096), 24, (16384, 4096), 4096, 64),
}
# Bytes and float32 operations per second from NVIDIA's data sheets: H200, A100 of 80 GB, RTX 3090, RTX 4090.
SHEETS = {"sm_90": (4.8, 67.0), "sm_80": (2.0, 19.5), "sm_86": (0.94, 35.6), "sm_89": (1.0, 82.6)}
# 10¹² operations per second of large library products, in half types and tf32: measured on an H200 in steps of large
# models, estimated from the data sheets for other GPUs.
PRODUCTS = {"sm_90": (700.0, 370.0), "sm_80": (250.0, 120.0), "sm_86": (60.0, 30.0), "sm_89": (150.0, 75.0)}

T = ws.Tensor
UNARY: dict[str, Callable[[T], T]] = {
    "div": lambda x: 1.5 / x,
    "recip": ws.recip,
    "ratio": lambda x: ws.ratio(x, x + 0.5),
    "sqrt": ws.sqrt,
    "mod": lambda x: ws.mod(x, 0.7),
    "exp": ws.exp,
    "exp2": ws.exp2,
    "expm1": ws.expm1,
    "log": ws.log,
    "log2": ws.log2,
    "log1p": ws.log1p,
    "sin": ws.sin,
    "cos": ws.cos,
    "erf": ws.erf,
    "atan": ws.atan,
    "sigmoid": ws.sigmoid,
    "tanh": ws.tanh,
    "pow": lambda x: x**1.7,
}


class Bench:
    """The measurements on one device."""

    def __init__(self, device: str) -> None:
        self.device, self.sizes = device, SIZES[device.partition(":")[0]]

    def seconds(self, output: Callable[[ws.Graph], T]) -> float:
        """The shortest time of a call that computes `output` of the graph, over several rounds."""
        g = ws.Graph()
        g.set_outputs({"y": output(g)})
        options = ws.CompileOptions(egraph=False, optimize=False, verify=False)
        session = ws.build_inference_session(g, threads=1, options=options, device=self.device)
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in range(CALLS):
                session.step()
            session.wait()
            best = min(best, (time.perf_counter() - began) / CALLS)
        return best

    def pointwise(self, f: Callable[[T], T], copies: int | None = None) -> float:
        """The seconds of Σ over columns of Σ f(x + c) for several c."""

        def output(g: ws.Graph) -> T:
            x = tensor(g, self.sizes.shape)
            total = x
            for i in range(copies or self.sizes.copies):
                total = total + f(x + 0.01 * (i + 1))
            return total.sum(-1)

        return self.seconds(output)

    def per_element_ns(self, f: Callable[[T], T], plain: float) -> float:
        return max(0.0, self.pointwise(f) - plain) / (self.sizes.copies * prod(self.sizes.shape)) * 1e9

    def addition_ns(self) -> float:
        """The cost of an addition: two more of them for each further term of the sum."""
        copies = self.sizes.copies
        few, many = (self.pointwise(lambda x: x, n) for n in (2 * copies, 5 * copies))
        return (many - few) / (2 * 3 * copies * prod(self.sizes.shape)) * 1e9

    def byte_ns(self) -> float:
        """The time to read a large tensor, without the fixed time of a call."""
        large, tiny = (self.seconds(lambda g, s=s: tensor(g, s).sum(-1)) for s in (self.sizes.large, (16, 16)))
        return (large - tiny) / (4 * prod(self.sizes.large)) * 1e9

    def product_ns(self) -> float:
        size = self.sizes.product

        def output(g: ws.Graph) -> T:
            x = tensor(g, (size, size))
            return (x @ x).sum(-1)

        return self.seconds(output) / size**3 * 1e9

    def pass_ns(self) -> float:
        """The cost of one more tiny reduction in a chain of dependent reductions."""
        passes = self.sizes.passes

        def chain(count: int) -> Callable[[ws.Graph], T]:
            def output(g: ws.Graph) -> T:
                x = tensor(g, (16, 16))
                for i in range(count):
                    x = x - 0.1 * x.sum(i % 2, keepdims=True)
                return x.sum()

            return output

        return (self.seconds(chain(passes // 8 + passes)) - self.seconds(chain(passes // 8))) / passes * 1e9

    def measure(self, origin: str) -> dict[str, Any]:
        """The table: nanoseconds, and the weights of expensive ops in additions, rounded to hide noise."""
        add, plain = self.addition_ns(), self.pointwise(lambda x: x)
        weights = {op: max(1.0, round(2 * self.per_element_ns(f, plain) / add) / 2) for op, f in UNARY.items()}
        return {
            "origin": origin,
            "operation": rounded(add),
            "byte": rounded(self.byte_ns()),
            "product": rounded(self.product_ns()),
            "pass_over": rounded(self.pass_ns()),
            "scalar": 1.0,  # part of the prologue: too small to matter
            "view": 0.001,  # a view costs nothing, but fewer views are easier to read
            "weights": weights,
        }


def tensor(g: ws.Graph, shape: tuple[int, int]) -> T:
    return g.parameter("x", shape, init=ws.init.uniform(0.2, 0.9))


def rounded(x: float) -> float:
    """Rounds to two digits; more would be noise."""
    return float(f"{x:.2g}")


def derived(measured: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The table of another GPU: bytes and operations are scaled by the ratios of the data sheets, the rest is kept."""
    bytes, flops = (SHEETS["sm_90"][i] / SHEETS[kind][i] for i in (0, 1))
    return {
        **measured,
        "origin": (
            f"derived from sm_90's, which were measured, by the data sheets ({SHEETS[kind][0]} of {SHEETS['sm_90'][0]} "
            f"TB/s, {SHEETS[kind][1]} of {SHEETS['sm_90'][1]} TFLOP/s); launches and functions as there"
        ),
        "operation": rounded(measured["operation"] * flops),
        "byte": rounded(measured["byte"] * bytes),
        "product": rounded(measured["product"] * flops),
    }


def with_library(table: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The table of a GPU with the costs of library products added."""
    half, tf32 = PRODUCTS[kind]
    origin = "measured in steps of large models" if kind == "sm_90" else "estimated"
    return {
        **table,
        "origin": f"{table['origin']}; half and tf32 products {origin}: {half:.0f} and {tf32:.0f} TFLOP/s",
        "half_product": rounded(2e-3 / half),
        "tf32_product": rounded(2e-3 / tf32),
    }


def tables(device: str) -> dict[Path, dict[str, Any]]:
    """The new contents of the table's files, by file."""
    if device == "cpu":
        return {TABLE: Bench(device).measure(ORIGIN)}
    from wholestep.compiler.backends.cuda.driver.driver import gpu

    measured = Bench(device).measure(f"measured: python -m benchmarks.calibrate --device cuda, {gpu(0).name}, float32")
    kinds = {kind: measured if kind == "sm_90" else derived(measured, kind) for kind in SHEETS}
    return {GPUS / f"{kind}.json": with_library(table, kind) for kind, table in kinds.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="replace the tables that are shipped")
    arguments.add_argument("--device", default="cpu", choices=sorted(SIZES))
    options = arguments.parse_args()
    for path, table in tables(options.device).items():
        text = json.dumps(table, indent=2) + "\n"
        if options.write:
            path.write_text(text)
        print(text, end="")


if __name__ == "__main__":
    main()
