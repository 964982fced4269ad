"""Mappings: whole pages, all zero; large ones ask for huge pages."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.runtime import memory
from wholestep.compiler.runtime.memory import LARGE, Region, free_bytes
from wholestep.session.building.batch_size import MOST


def flags(address: int) -> list[str]:
    """What the kernel notes about the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first:
            low, high = (int(part, 16) for part in first.split("-"))
            inside = low <= address < high
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(f"no mapping holds {address:#x}")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells about mappings")
@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this kernel has no huge pages")
def test_large_regions_ask_for_huge_pages() -> None:
    small, large = Region(5000), Region(LARGE)
    assert "hg" in flags(large.address)
    assert "hg" not in flags(small.address)


def test_a_region_is_whole_pages_of_zeros_that_views_write_to() -> None:
    region = Region(5000)
    assert region.size == 8192
    view = region.view(4096, 3, np.dtype(np.float32))
    assert not view.any()
    view[:] = 1.5
    assert region.view(4100, 1, np.dtype(np.float32))[0] == 1.5
    with pytest.raises(AssertionError, match="are outside a region of 8192"):
        region.view(8192, 1, np.dtype(np.float32))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mincore is Linux's")
def test_every_page_of_several_pieces_is_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PIECE", 1 << 16)
    region = Region(8 << 20)
    seen = np.zeros((8 << 20) // mmap.PAGESIZE, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    asked = libc.mincore(
        ctypes.c_void_p(region.address), ctypes.c_size_t(8 << 20), seen.ctypes.data_as(ctypes.c_void_p)
    )
    assert asked == 0, os.strerror(ctypes.get_errno())
    assert (seen & 1).all()
    assert not region.view(0, 8 << 20, np.dtype(np.uint8)).any()


UNKEPT = ws.CompileOptions(cache=False)


def too_large(inputs: int, hidden: int) -> tuple[ws.nn.Module, dict[str, Any]]:
    model = ws.nn.Sequential(ws.nn.Linear(inputs, hidden), ws.nn.ReLU(), ws.nn.Linear(hidden, 2))
    return model, {"inputs": ws.Spec(("batch", inputs)), "targets": ws.Spec(("batch", 2)), "loss": "mse"}


@pytest.mark.parametrize(("batch", "verify"), [(10**10, None), (10**17, False)])
def test_a_batch_that_no_machine_holds_names_its_tensors_and_one_that_fits(batch: int, verify: bool | None) -> None:
    model, given = too_large(8, 64)
    expected = r"a step needs [\d,]+ bytes.*largest tensors: .*batch, 64\].*batch=[\d,]+ is the largest that fits"
    with pytest.raises(MemoryError, match=expected) as told:
        ws.build_session(model, **given, batch_size=batch, options=ws.CompileOptions(verify=verify, cache=False))
    assert isinstance(told.value, ws.errors.OutOfMemoryError)
    found = re.search(r"batch=([\d,]+) is the largest that fits; received batch=([\d,]+)", str(told.value))
    assert found is not None
    fits, received = (int(n.replace(",", "")) for n in found.groups())
    assert received == batch
    used = ws.estimate(model, **given, batch_size=fits).peak_bytes / free_bytes()
    assert 0.9 < used < 1.1 or (fits == MOST and used < 1.0)  # others have taken or given some since


def test_a_weight_that_no_machine_holds_is_named() -> None:
    model, given = too_large(10**6, 3 * 10**6)
    with pytest.raises(ws.errors.OutOfMemoryError, match=r"largest tensors: '0\.weight' float32\[3000000, 1000000\]"):
        ws.build_session(model, **given, batch_size=4, options=ws.CompileOptions(verify=False))


def test_what_a_build_gives_up_serves_the_next_that_wants_as_much() -> None:
    with memory.recycle_pages():
        first = memory.Region(memory.LARGE)
        first.view(0, 1, np.dtype(np.uint8))[:] = 7
        address, other = first.address, memory.Region(2 * memory.LARGE)
        view = first.view(8, 8, np.dtype(np.uint8))
        del first
        meanwhile = memory.Region(memory.LARGE)
        assert meanwhile.address != address, "a view still reads it"
        del view
        again = memory.Region(memory.LARGE)
        assert again.address == address
        assert not again.view(0, again.size, np.dtype(np.uint8)).any()
        assert address not in (other.address, meanwhile.address)


def test_nothing_is_kept_behind_a_build() -> None:
    spares = memory.Spares()
    spares.close()
    spares.put(memory._map_memory(memory.LARGE))
    assert spares.take(memory.LARGE) is None


def test_what_a_build_expects_is_there_when_it_is_asked_for() -> None:
    with memory.recycle_pages():
        memory.expect_region(memory.PIECE + 1)
        spares = memory._SPARES.get()
        assert spares is not None
        (coming,) = spares._expected.values()
        region = memory.Region(memory.PIECE + 1)
        assert region.address == np.frombuffer(coming.mapped, np.uint8).ctypes.data
        assert not region.view(0, region.size, np.dtype(np.uint8)).any()
        memory.expect_region(3 * memory.PIECE)  # nobody asks for it
    assert not spares._expected
    memory.expect_region(memory.PIECE)  # outside a build nobody will


def test_a_build_begins_to_make_room_for_its_states_before_it_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, asked = list[int](), list[int]()
    monkeypatch.setattr(memory, "PIECE", 1 << 20)
    monkeypatch.setattr(memory.Spares, "expect", lambda spares, size: expected.append(size))
    monkeypatch.setattr(memory.Spares, "take", lambda spares, size: asked.append(size))
    model, given = too_large(784, 2000)
    ws.build_session(model, **given, batch_size=4, optimizer="adam", device="reference", options=UNKEPT)
    (size,) = expected
    assert size > 3 * 4 * 784 * 2000
    assert asked.count(size) == 2, "the check's states, and the session's"
