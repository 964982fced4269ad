"""Data larger than the GPU's memory: chunks in pinned double buffers, with the order and the bits of data that fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.models import UNCHECKED, device_bytes
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.support.sessions import assert_same_bits, data, mlp
from wholestep.compiler.backends.cuda.driver import host_copies
from wholestep.compiler.backends.cuda.runtime import streaming

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("early", [False, True], ids=["copies are late", "copies are early"])
def test_rows_that_do_not_fit_are_streamed_in_the_same_order_with_the_same_bits(
    early: bool, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of two and five updates, the last update smaller; two epochs in different orders."""
    if gpu is not None:
        monkeypatch.setattr(gpu, "early", early)
    rows = data(91)
    brought: list[int] = []
    load = streaming.StreamedData.load

    def note(self: streaming.StreamedData, epoch: object, update: int, count: int, own: object) -> object:
        brought.append(count)
        return load(self, epoch, update, count, own)  # type: ignore[arg-type]

    def trained() -> tuple[Array, dict[str, Array]]:
        before = device_bytes()
        session = ws.build_session(mlp(), optimizer=ws.Adam(lr=1e-2), batch_size=8, device="cuda", options=UNCHECKED)
        losses = session.run(**rows, epochs=2)
        assert device_bytes() - before == session.peak_bytes, "data is given back, and all the rest is told"
        return losses, session.state_dict()

    monkeypatch.setattr(streaming.StreamedData, "load", note)
    losses, state = trained()
    assert not brought
    set_costs(monkeypatch, "run", resident_share=0.0)
    for updates in (2, 5):
        brought.clear()
        set_costs(monkeypatch, "run", stream_chunk=1024 * updates)
        monkeypatch.setattr(host_copies, "PART", 100)  # rows are gathered by several threads,
        monkeypatch.setattr(host_copies, "LONG_ROW", 8)  # those of images in C
        streamed, other = trained()
        assert sum(brought) == len(losses) == 24
        assert max(brought) == updates
        np.testing.assert_array_equal(streamed, losses)
        assert_same_bits(other, state)
