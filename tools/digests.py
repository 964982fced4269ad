"""Digests of what the compiler produces, to show that a refactoring changed nothing.

`python tools/digests.py before.json` writes them; `python tools/digests.py after.json --compare before.json` writes
those of this tree and lists every difference.  For each network and device: the generated source without comments, the
integers of the plan, and the losses, weights and evaluation after a few steps.
CUDA kernels run in the emulation of the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import wholestep as ws

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.compiler.backends.cuda.emulation.fake_gpu import fake_gpu

STEPS = 20  # training steps whose losses and weights are compared
ROWS = 8  # batch size
DEVICES = ("cpu", "cpu/avx2", "reference", "cuda")  # cuda is emulated on the host
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


def residual() -> ws.nn.Module:
    """Batch norm, strides, a grouped convolution, average pooling."""
    return ws.nn.Sequential(
        ws.nn.Conv2d(3, 8, 3, padding=1), ws.nn.BatchNorm2d(8), ws.nn.ReLU(),
        ws.nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2), ws.nn.BatchNorm2d(12), ws.nn.GELU(),
        ws.nn.GlobalAvgPool2d(), ws.nn.Linear(12, 10),
    )  # fmt: skip


def perceptron() -> ws.nn.Module:
    return ws.nn.Sequential(
        ws.nn.Linear(64, 32), ws.nn.LayerNorm(32), ws.nn.ReLU(), ws.nn.Dropout(0.1), ws.nn.Linear(32, 10)
    )


def gpt() -> ws.nn.Module:
    return ws.models.gpt2(layers=2, width=32, heads=2, vocabulary=17, context=6)


# name: (model, shape of a row, values are tokens, optimizer, precision)
Network = tuple[Callable[[], ws.nn.Module], tuple[int, ...], bool, Callable[[], Any], str]
NETWORKS: dict[str, Network] = {
    "mlp": (perceptron, (64,), False, lambda: ws.AdamW(lr=1e-3), "float32"),
    "mlp bfloat16": (perceptron, (64,), False, lambda: ws.AdamW(lr=1e-3), "bfloat16"),
    "lenet": (ws.models.lenet5, (1, 28, 28), False, lambda: ws.SGD(lr=1e-2, momentum=0.9), "float32"),
    "residual": (residual, (3, 8, 8), False, lambda: ws.RMSprop(lr=1e-3), "float32"),
    "gpt": (gpt, (6,), True, lambda: ws.Adam(lr=1e-3), "float32"),
    "gpt bfloat16": (gpt, (6,), True, lambda: ws.Adam(lr=1e-3), "bfloat16"),
    "lstm": (lambda: ws.models.lstm_lm(17, width=12, layers=2), (6,), True, lambda: ws.SGD(lr=0.1), "float32"),
}


def digest(*parts: bytes | str) -> str:
    joined = hashlib.sha256()
    for part in parts:
        joined.update(part.encode() if isinstance(part, str) else part)
    return joined.hexdigest()[:16]


def batch(shape: tuple[int, ...], tokens: bool, seed: int, rows: int = ROWS) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    if tokens:
        return tuple(rng.integers(0, 17, (rows, *shape)).astype(np.int32) for _ in range(2))  # type: ignore[return-value]
    return rng.standard_normal((rows, *shape), dtype=np.float32), rng.integers(0, 10, rows).astype(np.int32)


def digests_of(name: str, device: str, *, egraph: bool) -> dict[str, Any]:
    """Every digest of one network on one device."""
    make, shape, tokens, optimizer, precision = NETWORKS[name]
    classes = ws.Spec(("batch", *shape), "int32") if tokens else ws.Spec(("batch",), "int32")
    model = make()
    session = ws.build_session(
        model,
        inputs=ws.Spec(("batch", *shape), "int32" if tokens else "float32"),
        targets=classes,
        loss="cross_entropy",
        optimizer=optimizer(),
        batch_size=ROWS,
        precision=precision,
        device=device,
        seed=0,
        options=ws.CompileOptions(egraph=egraph, cache=False, verify=False),
    )
    plan = session.plan
    found: dict[str, Any] = {
        "source": digest(COMMENT.sub("", session.source)) if device != "reference" else "",
        "kernels": len(plan.kernels),
        "flops": plan.flops,
        "bytes_moved": plan.bytes_moved,
        "peak_bytes": session.peak_bytes,
    }
    batches = [batch(shape, tokens, i, ROWS - i % 3) for i in range(STEPS)]
    found["losses"] = digest(*(np.float64(session.step(x=each[0], labels=each[1])).tobytes() for each in batches))
    state = session.state_dict()
    found["state"] = digest(*(part for key in sorted(state) for part in (key, np.asarray(state[key]).tobytes())))
    inputs, labels = batch(shape, tokens, STEPS)
    found["evaluate"] = digest(np.float64(session.evaluate(x=inputs, labels=labels)).tobytes())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--compare", type=Path)
    arguments = parser.parse_args()
    results = {}
    with fake_gpu():
        for name, device in product(NETWORKS, DEVICES):
            for egraph in (False, True) if device == "cpu" else (False,):
                label = f"{name}, {device}{', egraph' if egraph else ''}"
                results.update({f"{label}: {k}": v for k, v in digests_of(name, device, egraph=egraph).items()})
    arguments.out.write_text(json.dumps(results, indent=1))
    if arguments.compare:
        before = json.loads(arguments.compare.read_text())
        different = sorted(k for k in results.keys() | before.keys() if results.get(k) != before.get(k))
        print("".join(f"{k}: {before.get(k)} -> {results.get(k)}\n" for k in different), end="")
        print(f"{len(results) - len(different)} of {len(results)} equal")
        sys.exit(bool(different))


if __name__ == "__main__":
    main()
