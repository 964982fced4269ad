"""Building and loading the library, single steps, and the native loop, with a plan small enough to check by hand."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.targets import HERE, compile_c, load_library
from wholestep.compiler.backends.cpu.runtime.compiler import find_compiler
from wholestep.compiler.backends.cpu.runtime.library import (
    EXPLICIT,
    SEQUENTIAL,
    SHUFFLED,
    Library,
    LoopInput,
    NativeCall,
    NativeLoop,
    add_part,
    build_library,
    default_threads,
    load_plan_object,
)
from wholestep.compiler.ir.semantics import random
from wholestep.compiler.runtime.cache.content_store import ContentStore
from wholestep.compiler.runtime.epoch_permutation import epoch_order
from wholestep.platforms import linux

WIDTH = 3

# loss = derived[0] + the sum of all x of the batch + 1000 * (sum of labels); every thread sums its own rows.
PLAN = """
#include "ws.h"
#define EXPORT __attribute__((visibility("default")))
EXPORT void ws_prologue(const ws_call *c) { c->derived[0] = 0.5 * c->scalars[0]; }
EXPORT void ws_entry(const ws_call *c, int id, int threads) {
  const float *x = c->buffers[0];
  const int64_t *labels = c->buffers[1];
  double *partial = (double *)(c->work + id * c->work_bytes), sum = 0;
  long lo, hi;
  ws_own(c->dims[0], 1, id, threads, &lo, &hi);
  for (long i = lo; i < hi; i++) sum += x[3 * i] + x[3 * i + 1] + x[3 * i + 2] + 1000.0 * (double)labels[i];
  *partial = sum;
  c->api->barrier();
  if (id == 0) {
    sum = c->derived[0];
    for (int t = 0; t < threads; t++) sum += *(double *)(c->work + t * c->work_bytes);
    *(LOSS *)c->buffers[2] = (LOSS)sum;
  }
}
"""


class Program:
    """The plan above, bound to its buffers and to a data set of `rows` rows."""

    def __init__(self, folder: Path, rows: int, capacity: int, loss: Any = np.float32) -> None:
        self.library = load_library()
        source = PLAN.replace("LOSS", "float" if loss == np.float32 else "double")
        self.prologue, self.entry = load_plan_object(compile_c(source, cache=ContentStore(folder)))
        self.capacity = capacity
        self.x = np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)
        self.labels = np.arange(rows, dtype=np.int64) % 7
        self.loss = np.zeros(1, loss)
        self.dims = (ctypes.c_long * 1)(capacity)
        self.buffers = (ctypes.c_void_p * 3)(0, 0, self.loss.ctypes.data)
        self.scalars, self.derived = (ctypes.c_double * 1)(4.0), (ctypes.c_double * 1)(0.0)
        self.work = np.zeros((64, 8))
        self.staging = [np.full((capacity, WIDTH), np.nan, np.float32), np.zeros(capacity, np.int64)]
        self.call = NativeCall(api=self.library.api, dims=self.dims, buffers=self.buffers, work=self.work.ctypes.data,
                         work_bytes=64, scalars=self.scalars, derived=self.derived, seed=1, step=0)  # fmt: skip

    def loop(self, losses: np.ndarray[Any, Any], **fields: Any) -> NativeLoop:
        inputs = (LoopInput * 2)(
            *[
                LoopInput(
                    array.ctypes.data, array.strides[0], ctypes.addressof(self.buffers) + 8 * i, staging.ctypes.data
                )
                for i, (array, staging) in enumerate(zip((self.x, self.labels), self.staging))
            ]
        )
        values = {
            "prologue": self.prologue, "entry": self.entry, "call": ctypes.pointer(self.call),
            "batch_dim": ctypes.addressof(self.dims), "inputs": inputs, "input_count": 2,
            "loss": self.loss.ctypes.data, "loss_is_double": int(self.loss.dtype == np.float64),
            "losses": losses.ctypes.data, "rows": len(self.x), "capacity": self.capacity,
            "steps": losses.size, "seconds": 60.0, "threads": 1,
        }  # fmt: skip
        return NativeLoop(**{**values, **fields})

    def expected(self, order: np.ndarray[Any, Any]) -> list[float]:
        batches = [order[i : i + self.capacity] for i in range(0, len(order), self.capacity)]
        sums = [self.x[b].sum(dtype=np.float64) + 1000.0 * self.labels[b].sum() for b in batches]
        return [float(self.loss.dtype.type(0.5 * self.scalars[0] + s)) for s in sums]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


def test_the_library_is_built_once_and_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ContentStore(tmp_path)
    path = build_library(cache, find_compiler(), HERE.name)
    loaded = load_library()
    monkeypatch.setattr(subprocess, "run", None)
    assert build_library(cache, find_compiler(), HERE.name) == path
    assert load_library() is loaded


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_one_step(folder: Path, threads: int) -> None:
    program = Program(folder, rows=5, capacity=5)
    program.buffers[0], program.buffers[1] = program.x.ctypes.data, program.labels.ctypes.data
    program.library.run_step(program.prologue, program.entry, program.call, threads)
    assert program.loss[0] == program.expected(np.arange(5))[0]
    assert program.call.step == 0


ORDERS = {
    SEQUENTIAL: np.arange(23),
    SHUFFLED: epoch_order(11, 4, 23),
    EXPLICIT: np.random.default_rng(0).permutation(23).astype(np.int64),
}


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", list(ORDERS))
@pytest.mark.parametrize("loss", [np.float32, np.float64])
def test_an_epoch_with_a_short_last_batch(folder: Path, threads: int, kind: int, loss: Any) -> None:
    program = Program(folder, rows=23, capacity=5, loss=loss)
    losses = np.full(9, np.nan)
    order = ORDERS[kind]
    loop = program.loop(losses, order_kind=kind, order=order.ctypes.data, order_seed=11, order_epoch=4, threads=threads)
    assert program.library.run_loop(loop) == 5
    assert losses[:5].tolist() == program.expected(order)
    assert np.isnan(losses[5:]).all()
    assert (loop.position, program.call.step) == (23, 5)
    assert program.library.run_loop(loop) == 0


def test_an_epoch_in_slices_equals_an_epoch_at_once(folder: Path) -> None:
    program = Program(folder, rows=23, capacity=4)
    losses, got = np.zeros(2), []
    loop = program.loop(losses, order_kind=SHUFFLED, order_seed=11, order_epoch=4, threads=2)
    while (done := program.library.run_loop(loop)) > 0:
        got += losses[:done].tolist()
    assert got == program.expected(ORDERS[SHUFFLED])


def test_the_time_limit_ends_a_slice_after_at_least_one_step(folder: Path) -> None:
    program = Program(folder, rows=23, capacity=5)
    losses = np.zeros(9)
    loop = program.loop(losses, order_kind=SHUFFLED, order_seed=11, order_epoch=4, threads=2, seconds=0.0)
    for step in range(5):
        assert program.library.run_loop(loop) == 1
        assert losses[0] == program.expected(ORDERS[SHUFFLED])[step]
    assert program.library.run_loop(loop) == 0


def test_the_step_scalar_is_set_before_each_prologue(folder: Path) -> None:
    program = Program(folder, rows=8, capacity=2)
    program.call.step = 10
    program.x[...], program.labels[...] = 0, 0
    losses = np.zeros(4)
    loop = program.loop(losses, order_kind=SEQUENTIAL, step_scalar=ctypes.addressof(program.scalars), threads=2)
    assert program.library.run_loop(loop) == 4
    assert losses.tolist() == [5.0, 5.5, 6.0, 6.5]


def test_a_fixed_batch_needs_whole_batches(folder: Path) -> None:
    program = Program(folder, rows=23, capacity=5)
    with pytest.raises(ValueError, match="multiple of its capacity"):
        program.library.run_loop(program.loop(np.zeros(9), batch_dim=None))


def test_sequential_batches_are_read_in_place(folder: Path) -> None:
    program = Program(folder, rows=20, capacity=5)
    program.library.run_loop(program.loop(np.zeros(9), order_kind=SEQUENTIAL, threads=2))
    assert np.isnan(program.staging[0]).all()
    assert program.buffers[0] == program.x[15:].ctypes.data


def test_default_threads_respect_affinity_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= default_threads() <= len(linux.os.sched_getaffinity(0))
    monkeypatch.setattr(linux.os, "sched_getaffinity", lambda _: set(range(8)))
    assert linux.cores(tmp_path) == 8
    group = tmp_path / "sys/fs/cgroup/a/b"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert linux.cores(tmp_path) == 8
    (group.parent / "cpu.max").write_text("350000 100000\n")
    assert linux.cores(tmp_path) == 3
    (group / "cpu.max").write_text("50000 100000\n")
    assert linux.cores(tmp_path) == 1


def test_two_hardware_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux.os, "sched_getaffinity", lambda _: set(range(4)))
    for cpu in range(4):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    assert linux.cores(tmp_path) == 2


def test_importing_the_runtime_starts_nothing_and_imports_little() -> None:
    code = (
        "import sys, wholestep.compiler.backends.cpu.runtime.library\n"
        "late = {'subprocess', 'filelock', 'platformdirs'} & set(sys.modules)\n"
        "assert not late, late\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_structures_have_the_sizes_of_c(tmp_path: Path) -> None:
    names = {"ws_call": NativeCall, "ws_input": LoopInput, "ws_loop": NativeLoop}
    export = '__attribute__((visibility("default")))'
    body = "\n".join(f"{export} long size_{name}(void) {{ return sizeof({name}); }}" for name in names)
    object_file = ctypes.CDLL(str(compile_c(f'#include "runtime.h"\n{body}\n', cache=ContentStore(tmp_path))))
    for name, structure in names.items():
        assert object_file[f"size_{name}"]() == ctypes.sizeof(structure)


@pytest.mark.parametrize("first", [0, 3, 4 * 2**32 - 7])  # the number of a block has more than 32 bits in the last
def test_first_values_are_drawn_natively_to_the_bit(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count, drawn = random.MANY + 5, list[tuple[int, ...]]()
    library = load_library()

    def native(*given: int) -> random.Floats:
        drawn.append(given)
        return library.uniforms(*given)

    monkeypatch.setattr(random, "_native", None)
    wanted = random.uniform(7, "key", 2**33 + 5, (count,), first)
    random.register_native_generators(native)
    assert np.array_equal(random.uniform(7, "key", 2**33 + 5, (count,), first), wanted)
    assert len(drawn) == 1


@pytest.mark.parametrize("room", [64, 0])  # for those that NumPy draws one by one; else it draws all
@pytest.mark.parametrize("formula", [random.Formula(True, 0.3), random.Formula(True, 2.0, 1.0)])
def test_normal_first_values_are_drawn_natively_to_the_bit(
    formula: random.Formula, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, left, out = load_library(), list[random.Places | None](), np.empty((1 << 18) + 3, np.float32)
    monkeypatch.setattr("wholestep.compiler.backends.cpu.runtime.library.DOUBTFUL", room)

    def native(*given: Any) -> random.Places | None:
        left.append(library.normals(*given))
        return left[-1]

    for seed in range(4):
        monkeypatch.setattr(random, "_native_normals", None)
        random.write_normals(out, seed, "key", seed << 31, formula)
        wanted = out.copy()
        monkeypatch.setattr(random, "_native_normals", native)
        random.write_normals(out, seed, "key", seed << 31, formula)
        np.testing.assert_array_equal(out.view(np.int32), wanted.view(np.int32))  # signs of zeros too
    noted = sum(len(places) for places in left if places is not None)
    assert 0 < noted < 50 if room else None in left


def test_the_api_table_is_the_library_s_own() -> None:
    library: Library = load_library()
    add_part(library, "double", build_library(ContentStore(), find_compiler(), HERE.name, "double"))
    table = (ctypes.c_void_p * 3).from_address(library.api)
    functions = (library.gemm_f32, library.parts["double"].functions["gemm_f64"], library.barrier)
    assert list(table) == [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
