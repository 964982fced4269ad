"""Arrays of other libraries by DLPack: objects that offer nothing else are data, and results are read by torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import InputError


class OnlyDLPack:
    """An array of a library that NumPy does not know."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **asked: Any) -> Any:
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OnAGpu(OnlyDLPack):
    def __dlpack__(self, **asked: Any) -> Any:
        raise BufferError("the tensor is on cuda:0")


def fit(x: object, y: object) -> tuple[ws.TrainHistory, ws.nn.Module]:
    model = ws.nn.Linear(64, 10)
    return ws.fit(model, (x, y), loss="cross_entropy", epochs=2, device="reference", progress=False, seed=0), model


def test_arrays_by_dlpack_are_data() -> None:
    x, y = ws.datasets.digits()
    x, y = x[:100].copy(), y[:100].copy()
    expected, model = fit(x, y)
    for wrap in (OnlyDLPack, torch.from_numpy):
        history, other = fit(wrap(x), wrap(y))
        assert history == expected
        assert np.array_equal(np.asarray(other.predict(OnlyDLPack(x[:5]))), np.asarray(model.predict(x[:5])))


def test_results_are_read_by_dlpack() -> None:
    x = np.ones((3, 64), np.float32)
    outputs = ws.nn.Linear(64, 10).predict(x)
    assert np.array_equal(torch.from_dlpack(outputs).numpy(), np.asarray(outputs))


def test_memory_of_a_gpu_is_refused_in_our_words() -> None:
    x = OnAGpu(np.ones((4, 64), np.float32))
    with pytest.raises(InputError, match=r"a OnAGpu cannot be read by DLPack: .*cuda:0. Give an array in the host's"):
        fit(x, np.zeros(4, np.int32))
    with pytest.raises(InputError, match="cannot be read by DLPack"):
        ws.nn.Linear(64, 10).predict(x)
