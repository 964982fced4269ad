"""Exported steps compiled by gcc, called by ctypes; and the network that the tests export."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_long, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.backends.cpu.export.sources import compile_flags

ROWS, FEATURES, CLASSES, BATCH = 75, 20, 10, 32
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ws_init": (c_int, [c_void_p]),
    "ws_bytes": (c_long, []),
    "ws_bind": (c_int, [c_void_p, c_int, c_void_p]),
    "ws_row_bytes": (c_long, [c_int]),
    "ws_run": (c_long, [c_void_p, c_long, c_long, c_int, c_long, c_long, POINTER(c_double)]),
    "ws_update": (c_int, [c_void_p, c_long]),
    "ws_refused": (c_int, [c_void_p]),
    "ws_evaluate": (c_int, [c_void_p, c_long]),
    "ws_loss": (c_double, [c_void_p]),
    "ws_metric": (c_double, [c_void_p, c_int, c_int]),
    "ws_predict": (c_int, [c_void_p, c_long]),
    "ws_read_output": (c_int, [c_void_p, c_int, c_void_p]),
    "ws_output_bytes": (c_long, [c_void_p, c_int]),
    "ws_get_scalar": (c_double, [c_void_p, c_int]),
    "ws_set_scalar": (c_int, [c_void_p, c_int, c_double]),
    "ws_read_state": (c_int, [c_void_p, c_int, c_void_p]),
    "ws_write_state": (c_int, [c_void_p, c_int, c_void_p]),
    "ws_counter": (c_double, [c_void_p, c_int]),
    "ws_checkpoint_bytes": (c_long, []),
    "ws_save": (c_int, [c_void_p, c_void_p]),
    "ws_load": (c_int, [c_void_p, c_void_p, c_long]),
    "ws_error": (c_char_p, [c_int]),
}
needs_gcc = shutil.which("gcc") is not None


def rows() -> dict[str, Any]:
    """A data set of a few batches, the last one smaller."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, CLASSES, ROWS).astype(np.int32)}


def network_session(target: str = "cpu/portable", **options: Any) -> ws.Session:
    """A network with dropout, moments, a schedule and a metric."""
    net = ws.nn.Sequential(ws.nn.Linear(FEATURES, 24), ws.nn.ReLU(), ws.nn.Dropout(0.2), ws.nn.Linear(24, CLASSES))
    return ws.build_session(
        net,
        **{
            "inputs": ws.Spec(("batch", FEATURES)),
            "targets": ws.Spec(("batch",), "int32"),
            "loss": "cross_entropy",
            "optimizer": ws.AdamW(),
            "schedule": ws.schedules.cosine(0.01, 20, warmup=3),
            "metrics": ["accuracy"],
            "batch_size": BATCH,
            "device": target,
            "threads": 1,
            "seed": 3,
            **options,
        },
    )


def compile_objects(folder: Path, target: str, *flags: str) -> list[str]:
    """Compile the C files of a folder; bits do not depend on the level of optimization."""
    names = [p.relative_to(folder).as_posix() for p in sorted(folder.rglob("*.c")) if p.name != "main.c"]
    command = ["gcc", *compile_flags(target), "-O1", "-Wall", "-Werror", "-fPIC", *flags, f"-iquote{folder}/native"]
    objects = []
    for i, name in enumerate(names):
        subprocess.run([*command, "-c", name, "-o", f"{i}.o"], cwd=folder, check=True)
        objects.append(f"{i}.o")
    return objects


def needed_functions(objects: Sequence[str | Path]) -> set[str]:
    """What object files call outside of themselves."""
    listed = subprocess.run(["nm", "-u", *objects], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines() if " U " in line}
    return {name for name in names if not name.startswith("ws_")}


class CStep:
    """An exported step in this process: `call("run", ...)` is `ws_run(block, ...)`."""

    def __init__(self, folder: Path, target: str) -> None:
        objects = compile_objects(folder, target)
        subprocess.run(["gcc", "-shared", *objects, "-o", "step.so"], cwd=folder, check=True)
        self.dll = ctypes.CDLL(str(folder / "step.so"))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self.dll, name)
            function.restype, function.argtypes = result, arguments
        self.memory = np.full(self.dll.ws_bytes() + 128, 0xAB, np.uint8)
        self.block = (self.memory.ctypes.data + 63) // 64 * 64
        self.bound: list[Any] = []
        self.call("init")

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function with the block."""
        return getattr(self.dll, f"ws_{name}")(self.block, *arguments)

    def bind(self, arrays: dict[str, Any]) -> None:
        """Bind the inputs in their order."""
        self.bound = [np.ascontiguousarray(array) for array in arrays.values()]
        for i, array in enumerate(self.bound):
            assert self.call("bind", i, array.ctypes.data) == 0

    def run(self, count: int, epochs: int = 1, batch: int = 0, steps: int = 1000) -> Any:
        """The losses of shuffled epochs, `steps` updates to a call."""
        losses: list[float] = []
        for _ in range(epochs):
            position = 0
            while position < count:
                some = (c_double * steps)()
                done = self.call("run", count, batch, 1, position, steps, some)
                assert done > 0, self.dll.ws_error(done)
                losses += some[:done]
                position += done * (batch or BATCH)
        return np.array(losses)

    def load(self, file: bytes) -> int:
        """Read a checkpoint."""
        data = ctypes.create_string_buffer(file, len(file))
        return int(self.call("load", ctypes.addressof(data), len(file)))

    def save(self) -> bytes:
        """Write a checkpoint."""
        data = ctypes.create_string_buffer(self.dll.ws_checkpoint_bytes())
        assert self.call("save", ctypes.addressof(data)) == 0
        return data.raw
