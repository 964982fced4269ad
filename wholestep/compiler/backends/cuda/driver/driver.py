"""The CUDA driver API through NVIDIA's bindings: contexts, memory, streams, events.  No other module calls it directly.

The bindings are an optional dependency, and are imported when a GPU is first used.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import DeviceError, OptionError, OutOfMemoryError

INSTALL = 'pip install "wholestep[cuda]"'
HERE = threading.local()  # `gpu`: the GPU whose context is current in this thread


@cache
def bindings() -> Any:
    """The module of driver functions; OptionError if it or the driver is missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise OptionError(
            f"device='cuda' needs NVIDIA's bindings, which are not installed ({error}). Install them: {INSTALL}; or "
            "train with device='cpu'."
        ) from None
    try:
        (error_code,) = driver.cuInit(0)
    except Exception as error:  # the bindings raise several types if libcuda is missing
        raise OptionError(
            f"device='cuda' needs NVIDIA's driver, and this machine has none ({type(error).__name__}: {error}). "
            "Install the driver of the GPU, or train with device='cpu'."
        ) from None
    if error_code != driver.CUresult.CUDA_SUCCESS:
        raise OptionError(
            f"device='cuda': the driver found no usable GPU ({error_code.name}). Check the output of nvidia-smi, "
            "or train with device='cpu'."
        )
    return driver


def call(name: str, *args: Any) -> Any:
    """Calls a driver function and returns its results; DeviceError if it fails."""
    driver = bindings()
    error, *results = getattr(driver, name)(*args)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"the GPU's driver refused {name}: {error.name}.")
    return results[0] if len(results) == 1 else results


def gpu_count() -> int:
    """The number of GPUs."""
    count: int = call("cuDeviceGetCount")
    return count


def _as_text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode().strip()


class StepWatch(Protocol):
    """Watches steps that depend on other machines."""

    def until(self, is_done: Callable[[], bool]) -> None:
        """Returns when the watched work is done; raises if it cannot complete."""


class Gpu:
    """One GPU: its context, and one stream in which all work is ordered."""

    watch: StepWatch | None = None  # set if steps of this GPU depend on other GPUs

    def __init__(self, number: int) -> None:
        if number >= gpu_count():
            raise OptionError(f"device='cuda:{number}': this machine has {gpu_count()} GPUs, numbered from 0.")
        driver = bindings()
        self.number, self._handle = number, call("cuDeviceGet", number)
        self._context = call("cuDevicePrimaryCtxRetain", self._handle)
        self.enter()
        self.stream = call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.library_stream = call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._copy_in, self._copy_out = driver.cuMemcpyHtoDAsync, driver.cuMemcpyDtoHAsync
        attribute = driver.CUdevice_attribute
        self.capability = (
            int(call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self._handle)),
            int(call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self._handle)),
        )
        count = call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, self._handle)
        self.multiprocessors = int(count)
        self.name = _as_text(call("cuDeviceGetName", 128, self._handle))

    @property
    def bus(self) -> str:
        """PCI bus id: identifies the GPU on its machine, whatever its number in this process."""
        return _as_text(call("cuDeviceGetPCIBusId", 64, self._handle))

    def enter(self) -> None:
        """Makes the context current; every thread that calls the driver needs it."""
        if getattr(HERE, "gpu", None) is not self:
            call("cuCtxSetCurrent", self._context)
            HERE.gpu = self

    def wait(self) -> None:
        """Waits for all work; raises its errors."""
        self.enter()
        if self.watch is not None:
            self.watch.until(lambda: not self.is_pending(bindings().cuStreamQuery(self.stream)))
        call("cuStreamSynchronize", self.stream)

    @staticmethod
    def is_pending(answer: Sequence[Any]) -> bool:
        """Does the driver report "not ready"?  Errors are raised by the subsequent wait."""
        return bool(answer[0] == bindings().CUresult.CUDA_ERROR_NOT_READY)

    def wait_for(self, event: CudaEvent) -> None:
        """Makes later work in the stream wait for an event of another stream; the host does not block."""
        call("cuStreamWaitEvent", self.stream, event.handle, 0)

    def copy_in(self, to: int, of: int, size: int) -> None:
        """Asynchronous copy from pinned memory, in stream order."""
        (error,) = self._copy_in(to, of, size, self.stream)
        if error:
            raise DeviceError(f"the GPU's driver refused cuMemcpyHtoDAsync: {error.name}.")

    def copy_out(self, to: int, of: int, size: int) -> None:
        """Asynchronous copy to pinned memory, in stream order."""
        (error,) = self._copy_out(to, of, size, self.stream)
        if error:
            raise DeviceError(f"the GPU's driver refused cuMemcpyDtoHAsync: {error.name}.")

    @property
    def free_bytes(self) -> int:
        self.enter()
        free, _ = call("cuMemGetInfo")
        return int(free)

    @property
    def bytes(self) -> int:
        self.enter()
        _, total = call("cuMemGetInfo")
        return int(total)


@cache
def gpu(number: int) -> Gpu:
    """The GPU with this number: one object per process."""
    return Gpu(number)


def release(function: str, owner: Gpu, address: int) -> None:
    """Releases a driver object when nothing refers to it any longer."""
    with suppress(Exception):  # at interpreter exit the driver may be unloaded
        owner.enter()
        call(function, address)


class DeviceMemory:
    """Zeroed bytes on a GPU, freed when nothing refers to them."""

    def __init__(self, owner: Gpu, size: int) -> None:
        self.gpu, self.size = owner, max(size, 1)
        owner.enter()
        driver = bindings()
        error, address = driver.cuMemAlloc(self.size)
        if error == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemoryError(
                f"{self.size:,} bytes cannot be allocated on {owner.name}; {owner.free_bytes:,} of "
                f"{owner.bytes:,} bytes are free.",
                self.size,
                free=owner.free_bytes,
                where=owner.name,
            )
        if error != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(f"the GPU's driver refused cuMemAlloc of {self.size:,} bytes: {error.name}.")
        self.address = int(address)
        weakref.finalize(self, release, "cuMemFree", owner, self.address)
        self.fill(0)

    def fill(self, byte: int) -> None:
        self.gpu.enter()
        call("cuMemsetD8Async", self.address, byte, self.size, self.gpu.stream)

    def write(self, offset: int, array: AnyArray) -> None:
        """Copies an array, which the caller may change afterwards."""
        assert 0 <= offset <= offset + array.nbytes <= self.size, f"{array.nbytes} bytes at {offset} of {self.size}"
        if array.nbytes:
            self.gpu.enter()
            call("cuMemcpyHtoDAsync", self.address + offset, array.ctypes.data, array.nbytes, self.gpu.stream)
            self.gpu.wait()

    def read(self, offset: int, array: AnyArray) -> None:
        """Fills an array, after all work launched before."""
        assert 0 <= offset <= offset + array.nbytes <= self.size, f"{array.nbytes} bytes at {offset} of {self.size}"
        if array.nbytes:
            self.gpu.enter()
            call("cuMemcpyDtoHAsync", array.ctypes.data, self.address + offset, array.nbytes, self.gpu.stream)
        self.gpu.wait()


class PinnedMemory:
    """Page-locked host memory, for asynchronous copies."""

    def __init__(self, owner: Gpu, size: int) -> None:
        self.size = max(size, 1)
        owner.enter()
        self.address = int(call("cuMemHostAlloc", self.size, 0))
        weakref.finalize(self, release, "cuMemFreeHost", owner, self.address)
        raw = (ctypes.c_uint8 * self.size).from_address(self.address)
        self.bytes: AnyArray = np.frombuffer(memoryview(raw), np.uint8)
        self.bytes[:] = 0

    def view(self, offset: int, count: int, dtype: np.dtype[Any]) -> AnyArray:
        """Elements that start at a byte offset."""
        return self.bytes[offset : offset + count * dtype.itemsize].view(dtype)


class CudaEvent:
    """A recorded point of a stream."""

    def __init__(self, owner: Gpu, timed: bool = False) -> None:
        self._gpu, self._record, self._wait = owner, bindings().cuEventRecord, bindings().cuEventSynchronize
        flags = bindings().CUevent_flags
        owner.enter()
        self.handle = call("cuEventCreate", flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING)

    def record(self) -> None:
        (error,) = self._record(self.handle, self._gpu.stream)
        if error:
            raise DeviceError(f"the GPU's driver refused cuEventRecord: {error.name}.")

    def wait(self) -> None:
        """Waits until the stream has reached this event."""
        self._gpu.enter()
        if self._gpu.watch is not None:
            self._gpu.watch.until(lambda: not self._gpu.is_pending(bindings().cuEventQuery(self.handle)))
        (error,) = self._wait(self.handle)
        if error:
            raise DeviceError(f"the GPU's driver refused cuEventSynchronize: {error.name}.")

    def milliseconds_since(self, earlier: CudaEvent) -> float:
        elapsed: float = call("cuEventElapsedTime", earlier.handle, self.handle)
        return elapsed


class CopyStream:
    """A stream for copies to a GPU that overlap with its main stream."""

    def __init__(self, owner: Gpu) -> None:
        owner.enter()
        self._gpu = owner
        self._handle = call("cuStreamCreate", bindings().CUstream_flags.CU_STREAM_NON_BLOCKING)
        weakref.finalize(self, release, "cuStreamDestroy", owner, self._handle)

    def copy_in(self, to: int, of: int, size: int) -> None:
        """Asynchronous copy from pinned memory, in this stream's order."""
        self._gpu.enter()
        call("cuMemcpyHtoDAsync", to, of, size, self._handle)

    def record(self, event: CudaEvent) -> None:
        """Records an event after all copies so far."""
        call("cuEventRecord", event.handle, self._handle)


class CudaModule:
    """Loaded machine code."""

    def __init__(self, owner: Gpu, code: bytes) -> None:
        owner.enter()
        self._code = np.frombuffer(code + b"\0", np.uint8)
        self._handle = call("cuModuleLoadData", self._code.ctypes.data)

    def function(self, name: str) -> Any:
        return call("cuModuleGetFunction", self._handle, name.encode())


def allow_shared(function: Any, size: int) -> None:
    """Permits a kernel to use this many bytes of dynamic shared memory."""
    attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call("cuFuncSetAttribute", function, attribute, size)


class CooperativeKernel:
    """A cooperative launch: all blocks are co-resident, so that they can wait for each other."""

    def __init__(self, owner: Gpu, function: Any, blocks: int, threads: int, shared: int) -> None:
        self._gpu, self._function, self._geometry = owner, function, (blocks, 1, 1, threads, 1, 1, shared)
        allow_shared(function, shared)

    def launch(self, arguments: Sequence[Any]) -> None:
        """Enqueues the launch; arguments are ctypes values."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        addresses = ctypes.addressof(pointers)
        call("cuLaunchCooperativeKernel", self._function, *self._geometry, self._gpu.stream, addresses)
