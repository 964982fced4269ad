"""Habits of users of PyTorch and Keras that are wrong here: each error says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import HabitError, UnknownNameError, UsageError

nn = ws.nn
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
Case = tuple[Callable[[], object], type[Exception], str]


def tensor(*shape: int | str, dtype: str = "float32") -> ws.Tensor:
    return ws.Graph().input("x", shape or ("batch", 3), dtype)


class Net(nn.Module):
    def __init__(self, forward: Callable[[Any, Any], Any]) -> None:
        self.fc, self.compute = nn.Linear(3, 2), forward

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.compute(self, x)


def fit(model: Any = None, **options: Any) -> ws.TrainHistory:
    given = {"loss": "cross_entropy", "batch_size": 4, "progress": False, "device": "reference", **options}
    return ws.fit(nn.Linear(3, 2) if model is None else model, (X, Y), **given)


def assigned() -> None:
    tensor()[0] = 1.0


def gathered() -> ws.Tensor:
    g = ws.Graph()
    return ws.gather(g.input("x", ("batch", 3)), 1, g.input("i", ("batch", 1), "int32"))


def attended() -> ws.Tensor:
    g = ws.Graph()
    return nn.MultiheadAttention(8, 2)(*(g.input(name, ("batch", 4, 8)) for name in "qkv"))


def sequence() -> Any:
    return nn.Sequential(nn.LSTM(3, 4), nn.Linear(4, 2))(tensor("time", "batch", 3))


LAYERS: dict[str, Case] = {
    "one size": (
        lambda: nn.Linear(128),
        UsageError,
        r"Linear needs 2 arguments, Linear\(inputs, outputs\); received 1",
    ),
    "units": (lambda: nn.Linear(units=128), UsageError, r"no argument 'units': layers are told both sizes"),
    "Dense": (lambda: nn.Dense(128), HabitError, r"write ws\.nn\.Linear\(inputs, outputs\)"),
    "an activation by name": (
        lambda: nn.Linear(3, 4, activation="relu"),
        UsageError,
        "an activation is a layer of its own",
    ),
    "a misspelt argument": (
        lambda: nn.Conv2d(3, 8, 3, paddng=1),
        UsageError,
        r"no argument 'paddng'\. Did you mean padding=",
    ),
    "channels last": (
        lambda: nn.Conv2d(3, 8, 3, data_format="channels_last"),
        UsageError,
        r"x\.transpose\(0, 3, 1, 2\)",
    ),
    "time first": (lambda: nn.MultiheadAttention(8, 2, batch_first=False), UsageError, "the batch comes first"),
    "query, key and value": (attended, UsageError, r"as torch's on query, key and value.*attention\(x, memory\)"),
    "a tuple in a sequence": (sequence, UsageError, r"LSTM.* gives a tuple of 2, and Linear.*ws\.nn\.Lambda"),
    "children": (
        lambda: nn.Sequential(*nn.Sequential(nn.ReLU()).children()),
        UsageError,
        r"\*model\.children\(\)\.values\(\)",
    ),
    "a class of a layer": (lambda: nn.Sequential(nn.ReLU), UsageError, r"That is the class; make one: ReLU\(\.\.\.\)"),
    "torch's layer": (
        lambda: nn.Sequential(torch.nn.Linear(3, 2)),
        UsageError,
        r"torch's Linear: write ws\.nn\.Linear\(",
    ),
    "a buffer that is a tensor": (
        lambda: nn.Linear(3, 2).register_buffer("m", ws.ones(2, 2)),
        UsageError,
        "a buffer holds numbers. Make them with NumPy",
    ),
}

TENSORS: dict[str, Case] = {
    "values and indices": (
        lambda: tensor().max(dim=1),
        UsageError,
        r"x\.max\(axis\) for the values, x\.argmax\(axis\)",
    ),
    "gather by element": (gathered, UsageError, r"write ws\.take_along_axis\(x, index, axis\)"),
    "item assignment": (assigned, UsageError, r"never changed in place.*ws\.where\(condition, value, x\)"),
    "in place": (lambda: tensor().add_(1.0), HabitError, "tensors are never changed in place"),
    "the size of a batch": (lambda: len(tensor()), UsageError, r"batch is symbolic; write x\.shape\[0\]"),
    "one tensor to cat": (
        lambda: ws.cat(tensor()),
        UsageError,
        r"needs a list of tensors, ws\.concat\(\[x, y\], axis\)",
    ),
    "torch's function": (lambda: torch.relu(tensor()), UsageError, r"torch's relu was called .*: write ws\.relu\("),
    "torch's tensor": (
        lambda: tensor() + torch.ones(3),
        UsageError,
        r"cannot be an operand of a tensor.*Convert it to an array: \.numpy\(\)",
    ),
    "a tensor on a device": (lambda: tensor().to("cuda"), HabitError, "'cuda'; the device belongs to the session"),
    "a weight's numbers": (
        lambda: nn.Linear(3, 2).weight[0],
        UsageError,
        r"numbers are an array: model\.state_dict\(\)",
    ),
    "a weight in NumPy": (lambda: np.asarray(nn.Linear(3, 2).weight), UsageError, r"model\.state_dict\(\)\[name\]"),
    "if self.training": (
        lambda: Net(lambda net, x: net.fc(x) if net.training else x)(tensor()),
        UsageError,
        r"ws\.by_mode\(in_training, otherwise\)",
    ),
    "an axis twice": (
        lambda: ws.softmax(tensor(), dim=1, axis=1),
        UsageError,
        "dim= is another name of axis=, and both",
    ),
    "random numbers of no graph": (lambda: ws.rand(3), HabitError, r"ws\.random_uniform\(x, shape\)"),
    "a tensor of data": (lambda: ws.tensor([1.0]), HabitError, r"data are NumPy arrays, as they are"),
}

TRAINING: dict[str, Case] = {
    "model.fit": (lambda: nn.Linear(3, 2).fit(X, Y), HabitError, r"write ws\.fit\(model, \(x, y\), loss="),
    "model.compile": (lambda: nn.Linear(3, 2).compile(loss="mse"), HabitError, "every step is compiled as a whole"),
    "Keras' loss": (lambda: fit(loss="sparse_categorical_crossentropy"), UnknownNameError, "leave the softmax out"),
    "torch's loss": (
        lambda: fit(loss=torch.nn.CrossEntropyLoss()),
        UsageError,
        r"torch's CrossEntropyLoss: write ws\.nn\.CrossEntropyLoss",
    ),
    "a class of a loss": (
        lambda: fit(loss=nn.CrossEntropyLoss),
        UsageError,
        r"make one: loss=ws\.nn\.CrossEntropyLoss\(\)",
    ),
    "torch's optimizer": (
        lambda: fit(optimizer=torch.optim.Adam([torch.zeros(1, requires_grad=True)])),
        UsageError,
        r"another library's.*ws\.Adam\(lr",
    ),
    "a class of an optimizer": (lambda: fit(optimizer=ws.Adam), UsageError, r"is the class ws\.Adam; give an instance"),
    "optimizer.step()": (lambda: ws.Adam().step(), UsageError, r"session\.step\(\.\.\.\) and ws\.fit make whole steps"),
    "clipping in the optimizer": (
        lambda: ws.SGD(clipnorm=1.0),
        UsageError,
        r"clipped by ws\.fit\(\.\.\., clip_norm=1\.0\)",
    ),
    "weights of rows": (lambda: fit(sample_weight=np.ones(12)), UsageError, r"\(x, y, sample_weight\)"),
    "workers": (
        lambda: ws.DataLoader(X, Y, num_workers=4),
        UsageError,
        "arrays are gathered by the native loop; prefetch=2",
    ),
    "a misspelt option of a callback": (lambda: ws.EarlyStopping(patiance=3), UsageError, "Did you mean patience="),
    "a file as numbers": (
        lambda: nn.Linear(3, 2).load_state_dict("a.pt"),
        UsageError,
        r"read by model\.load\('a\.pt'\)",
    ),
    "the history's attribute": (lambda: ws.TrainHistory().losses, AttributeError, r"read metrics as history\['loss'\]"),
    "a layer at the top": (lambda: ws.Linear(3, 2), AttributeError, r"no attribute 'Linear'\. It is ws\.nn\.Linear"),
    "initial_seed": (
        lambda: ws.initial_seed(),
        HabitError,
        r"write ws\.manual_seed\(0\) for the process, or seed=0 to",
    ),
}

EVERY = {**LAYERS, **TENSORS, **TRAINING}


@pytest.mark.parametrize("name", EVERY)
def test_the_error_says_what_to_write(name: str) -> None:
    do, kind, text = EVERY[name]
    with pytest.raises(kind, match=text):
        do()
