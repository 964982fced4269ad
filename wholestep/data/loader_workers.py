"""Processes that read the batches of a loader, for data sets whose rows take longer to read than a step to compute.

Each process receives the data set once, and then the row numbers of every n-th batch.  It writes the arrays of a batch
into a slot of shared memory and sends their layout through a pipe; a batch that is larger than its slot (rows padded
by `collate_fn` to their longest) goes through the pipe itself.  The consumer receives batches in order, so the result
does not depend on the number or the speed of the processes.

Processes are spawned: a fork would copy the locks of the native threads and the state of a GPU's driver
(docs/decisions/097-loader-processes.md).
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.data.order import Rows, keyed_uniform
from wholestep.data.table import Array, Batch
from wholestep.errors import UsageError, WorkerError

if TYPE_CHECKING:
    from wholestep.data.loader import DataLoader

ALIGNMENT = 64  # bytes
AHEAD = 2  # batches that each process computes in advance
PATIENCE = 5.0  # seconds that a process has to end before it is killed


@dataclass(frozen=True)
class Task:
    """The rows of one batch, and what else determines its values."""

    rows: Rows
    epoch: int
    seed: int
    position: int
    numbers_rows: bool
    slot: int


class WorkerPool:
    """Processes with a copy of a loader's data set; one loop at a time reads from them."""

    def __init__(self, loader: DataLoader) -> None:
        count = loader.num_workers
        self.ahead = count * max(AHEAD, -(-loader.prefetch // count))
        size = 2 * ALIGNMENT + loader.batch_size * _row_bytes(loader)
        try:
            source = bytes(ForkingPickler.dumps(loader.for_worker()))
        except Exception as error:
            raise UsageError(
                f"num_workers={count} sends the data set to other processes, and {loader.source!r} cannot be sent: "
                f"{error}. Define its class and functions at the top level of a module (no lambdas), and open files "
                "in __getitem__."
            ) from error
        context = multiprocessing.get_context("spawn")
        self.slots = [context.RawArray("B", size) for _ in range(self.ahead)]
        self.workers: list[tuple[Any, Connection]] = []
        try:
            with _ignore_interrupts():
                for number in range(count):
                    ours, theirs = context.Pipe()
                    process = context.Process(
                        target=_serve, args=(theirs, self.slots), daemon=True, name=f"wholestep-loader-{number}"
                    )
                    process.start()
                    theirs.close()
                    self.workers.append((process, ours))
            for _, connection in self.workers:
                with suppress(OSError):  # a process that has ended is reported where its first batch is read
                    connection.send_bytes(source)
        except BaseException:
            self.close()
            raise

    def batches(self, tasks: Iterator[Task]) -> Generator[Batch]:
        """The batches of the tasks, in order; the pool is closed unless all of them are read."""
        waiting: deque[Task] = deque()
        complete = False
        try:
            for task in tasks:
                if len(waiting) == self.ahead:
                    yield self._receive(waiting.popleft())
                self._send(task)
                waiting.append(task)
            while waiting:
                yield self._receive(waiting.popleft())
            complete = True
        finally:
            if not complete:
                self.close()

    def _send(self, task: Task) -> None:
        with suppress(OSError):  # a process that has ended is reported where its batch is read
            self._worker(task)[1].send(task)

    def _worker(self, task: Task) -> tuple[Any, Connection]:
        return self.workers[task.position % len(self.workers)]

    def _receive(self, task: Task) -> Batch:
        process, connection = self._worker(task)
        while not connection.poll():
            if not process.is_alive() and not connection.poll():
                self._report_lost(process, task)
            wait([connection, process.sentinel])
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            self._report_lost(process, task)
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, Batch) else _read(answer, self.slots[task.slot])

    def _report_lost(self, process: Any, task: Task) -> None:
        process.join(PATIENCE)
        code = process.exitcode
        cause = f"ended with exit code {code}"
        if code is not None and code < 0:
            cause = f"was ended by {signal.Signals(-code).name}"
        fix = {
            True: "If it was out of memory, choose fewer workers or a smaller batch_size.",
            False: "Its own error is printed above. A script that uses num_workers= starts its run under `if __name__ "
            "== '__main__':`, because the processes import it.",
        }
        raise WorkerError(
            f"process {process.name} of the loader {cause} before batch {task.position} of epoch {task.epoch} was "
            f"read. {fix[code == -signal.SIGKILL]} num_workers=0 reads the data in this process."
        )

    def close(self) -> None:
        """End all processes; a process that does not end by itself is killed."""
        for _, connection in self.workers:
            connection.close()
        for process, _ in self.workers:
            process.join(PATIENCE if process.exitcode is None and process.is_alive() else None)
            if process.is_alive():
                process.kill()
                process.join()
        self.workers = []


class Pools:
    """The idle pool of a loader and its copies; it ends with the last of them."""

    def __init__(self) -> None:
        self.idle: WorkerPool | None = None
        self.lock = threading.Lock()

    def take(self, loader: DataLoader) -> WorkerPool:
        """The idle pool, or a new one if two loops run at the same time."""
        with self.lock:
            pool, self.idle = self.idle, None
        return WorkerPool(loader) if pool is None else pool

    def give_back(self, pool: WorkerPool) -> None:
        """Keep a pool for the next epoch."""
        with self.lock:
            if self.idle is None and pool.workers:
                self.idle = pool
                return
        pool.close()

    def close(self) -> None:
        with self.lock:
            pool, self.idle = self.idle, None
        if pool is not None:
            pool.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Pools], tuple[()]]:
        """A copy of the loader in another process, or with a copied experiment, starts separate processes."""
        return Pools, ()


@contextmanager
def end_processes(loader: DataLoader) -> Iterator[None]:
    """End the processes of a loader at the end of a block."""
    try:
        yield
    finally:
        if loader.pools is not None:
            loader.pools.close()


def _row_bytes(loader: DataLoader) -> int:
    """Bytes of one row, from the first one."""
    first = loader.batch_of(np.zeros(1, np.int64), 0)
    return sum(array.nbytes + ALIGNMENT for array in _arrays(first))


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Processes that start within this block ignore Ctrl-C from their first instruction: the consumer ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# -- in a process of the pool ------------------------------------------------------------------------------------


def _serve(connection: Connection, slots: list[Any]) -> None:
    """Read batches until the consumer closes its end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loader: Any = None
    with suppress(EOFError, OSError):
        source = connection.recv_bytes()
        try:
            loader = ForkingPickler.loads(source)
        except BaseException as error:
            connection.recv()
            connection.send(_sendable(_unknown_class(error)))
            return
        while True:
            task = connection.recv()
            try:
                answer: Any = _write(_compute(loader, task), slots[task.slot])
            except BaseException as error:
                answer = _sendable(error)
            connection.send(answer)


def _compute(loader: DataLoader, task: Task) -> Batch:
    loader.seed, loader.numbers_rows = task.seed, task.numbers_rows
    drawn = int(keyed_uniform(task.seed, task.epoch, [task.position], 0)[0] * 2**32)
    random.seed(drawn)
    np.random.seed(drawn)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(drawn)
    return loader.batch_of(task.rows, task.epoch)


def _unknown_class(error: BaseException) -> BaseException:
    return UsageError(
        f"num_workers= sends the data set to other processes, which could not load it: {error}. Define its class at "
        "the top level of a file that can be imported; a class of an interactive session or a notebook cannot."
    )


def _sendable(error: BaseException) -> BaseException:
    """The exception with its traceback as a note; if it cannot be pickled, another exception with its text."""
    error.add_note("in a process of the loader:\n" + "".join(traceback.format_exception(error)))
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
        return error
    except Exception:
        return WorkerError(f"{type(error).__name__} in a process of the loader: {error}\n{error.__notes__[-1]}")


# -- batches in shared memory ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """A batch whose arrays are in a slot: `Batch` with (offset, shape, dtype) in place of arrays."""

    layout: Batch


def _write(batch: Batch, slot: Any) -> Stored | Batch:
    memory = np.frombuffer(slot, np.uint8)
    if sum(array.nbytes + ALIGNMENT for array in _arrays(batch)) > len(memory):
        return batch
    end = 0

    def store(array: Array) -> tuple[int, tuple[int, ...], str]:
        nonlocal end
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + array.nbytes
        np.ndarray(array.shape, array.dtype, memory.data, start)[...] = array
        return start, array.shape, array.dtype.str

    return Stored(_map(batch, store))


def _read(stored: Stored, slot: Any) -> Batch:
    memory = np.frombuffer(slot, np.uint8)

    def load(place: tuple[int, tuple[int, ...], str]) -> Array:
        start, shape, dtype = place
        return np.ndarray(shape, dtype, memory.data, start).copy()

    return _map(stored.layout, load)


def _map(batch: Batch, function: Any) -> Batch:
    def part(value: Any) -> Any:
        if value is None:
            return None
        return {name: function(v) for name, v in value.items()} if isinstance(value, Mapping) else function(value)

    return Batch(part(batch.inputs), part(batch.targets), part(batch.weights))


def _arrays(batch: Batch) -> list[Array]:
    return list(batch.named().values())
