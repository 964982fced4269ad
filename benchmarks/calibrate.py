"""Measures the costs that the e-graph chooses by, with our own kernels, and writes the table that is shipped.

    python -m benchmarks.calibrate                 prints the table
    python -m benchmarks.calibrate --write         replaces wholestep/compiler/backends/cpu/costs.json

Run it on a quiet machine, once per target and whenever kernels get much faster; the table is data, so that the same
graph gives the same plan everywhere.  One thread, float32.  An op's price is the time that `COPIES` of it add to a
kernel that is otherwise the same, so neither Python nor loads and stores are in it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import wholestep as ws

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "wholestep" / "compiler" / "backends" / "cpu" / "costs.json"
ORIGIN = "measured: python -m benchmarks.calibrate, one thread, float32"
ROWS, COLUMNS, COPIES = 128, 256, 6  # a tensor stays in the cache
LARGE = (1024, 1024)  # 4 MB, as the activations of a layer: this one goes through the outer caches
CALLS, ROUNDS = 12, 15
ADDITION = "add"

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


def seconds(output: Callable[[ws.Graph], T]) -> float:
    """The shortest time of a call that computes `output` of the graph, over several rounds."""
    g = ws.Graph()
    g.set_outputs({"y": output(g)})
    options = ws.CompileOptions(egraph=False, optimize=False)
    session = ws.build_inference_session(g, threads=1, options=options)
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            session.step()
        session.wait()
        best = min(best, (time.perf_counter() - began) / CALLS)
    return best


def tensor(g: ws.Graph, shape: tuple[int, int] = (ROWS, COLUMNS)) -> T:
    return g.parameter("x", shape, init=ws.init.uniform(0.2, 0.9))


def pointwise(f: Callable[[T], T], copies: int = COPIES) -> float:
    """Seconds of Σ over elements of Σ f(x + c) for several c."""

    def output(g: ws.Graph) -> T:
        x = tensor(g)
        total = x
        for i in range(copies):
            total = total + f(x + 0.01 * (i + 1))
        return total.sum()

    return seconds(output)


def per_element_ns(f: Callable[[T], T], plain: float) -> float:
    return max(0.0, pointwise(f) - plain) / (COPIES * ROWS * COLUMNS) * 1e9


def addition_ns() -> float:
    """Two more additions for each further copy of the plain sum."""
    few, many = (pointwise(lambda x: x, copies) for copies in (COPIES, 4 * COPIES))
    return (many - few) / (2 * 3 * COPIES * ROWS * COLUMNS) * 1e9


def byte_ns() -> float:
    """Reading a large tensor, without what a call takes anyway."""
    large, tiny = seconds(lambda g: tensor(g, LARGE).sum()), seconds(lambda g: tensor(g, (16, 16)).sum())
    return (large - tiny) / (4 * LARGE[0] * LARGE[1]) * 1e9


def product_ns(size: int = 512) -> float:
    def output(g: ws.Graph) -> T:
        x = tensor(g, (size, size))
        return (x @ x).sum()

    return seconds(output) / size**3 * 1e9


def pass_ns(passes: int = 8) -> float:
    """What one more reduction of next to nothing costs, each needing the one before."""

    def chain(count: int) -> Callable[[ws.Graph], T]:
        def output(g: ws.Graph) -> T:
            x = tensor(g, (16, 16))
            for i in range(count):
                x = x - 0.1 * x.sum(i % 2, keepdims=True)
            return x.sum()

        return output

    return (seconds(chain(1 + passes)) - seconds(chain(1))) / passes * 1e9


def measure() -> dict[str, object]:
    """The table: nanoseconds, and the weights of dear ops in additions, rounded so that noise does not show."""
    add, plain = addition_ns(), pointwise(lambda x: x)
    weights = {op: max(1.0, round(2 * per_element_ns(f, plain) / add) / 2) for op, f in UNARY.items()}
    return {
        "origin": ORIGIN,
        "operation": rounded(add),
        "byte": rounded(byte_ns()),
        "product": rounded(product_ns()),
        "pass_over": rounded(pass_ns()),
        "scalar": 1.0,  # of the prologue: never what decides
        "view": 0.001,  # nothing is done; one less is easier to read
        "weights": weights,
    }


def rounded(x: float) -> float:
    """Two digits: more would be noise."""
    return float(f"{x:.2g}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="replace the table that is shipped")
    text = json.dumps(measure(), indent=2) + "\n"
    if arguments.parse_args().write:
        TABLE.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
