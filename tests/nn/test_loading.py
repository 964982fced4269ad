"""Weights of others into a model: other names, a head of another size, what is told, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import wholestep as ws
from tests.support.compilers import quick

RNG = np.random.default_rng(3)
X = RNG.normal(size=(32, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32) + (X[:, 1] > 0)


class Net(ws.nn.Module):
    def __init__(self, classes: int) -> None:
        self.body = ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.BatchNorm1d(8), ws.nn.ReLU())
        self.head = ws.nn.Linear(8, classes)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.head(self.body(x))


class Theirs(torch.nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))


BODY = ("body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var")


def wrapped(classes: int) -> dict[str, torch.Tensor]:
    """What DataParallel saves."""
    return dict(torch.nn.DataParallel(Theirs(classes)).state_dict())


def unchanged(model: ws.nn.Module, before: dict[str, np.ndarray]) -> bool:
    return all((array == before[name]).all() for name, array in model.state_dict().items())


def test_a_wrapped_file_with_another_head_is_loaded_told_and_trained_as_torch_would(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs, model, file = wrapped(10), Net(3), tmp_path / "theirs.safetensors"
    save_file(theirs, file)
    before = model.state_dict()
    with pytest.raises(ws.errors.UnknownNameError) as names:
        model.load(file)
    told = str(names.value)
    assert told.startswith(
        "the names do not match the model; nothing was loaded.\nmissing in the file: body.0.weight, "
    )
    assert "in the file but not in the model: module.body.0.bias, " in told
    assert "Pass rename={'module.': ''}: 9 of 9 names are then the model's." in told
    assert told.endswith("Pass strict=False to load what matches.")
    shapes = (
        r"the shapes do not match the model; nothing was loaded.\nof another shape:\n"
        r"  'head.bias' has shape \(3,\) in the model; received \(10,\)\n"
        r"  'head.weight' has shape \(3, 8\) in the model; received \(10, 8\)\nPass strict=False to load what matches."
    )
    with pytest.raises(ws.errors.ShapeError, match=shapes):
        model.load(file, rename={"module.": ""})
    assert unchanged(model, before)

    report = model.load(file, strict=False, rename={"module.": ""})
    assert (set(report.loaded), report.missing, report.unexpected) == ({*BODY}, (), ())
    assert report.other_shape == (("head.bias", (10,), (3,)), ("head.weight", (10, 8), (3, 8)))
    assert str(report) == (
        "6 arrays loaded\nof another shape, left as they were:\n"
        "  'head.bias' has shape (3,) in the model; received (10,)\n"
        "  'head.weight' has shape (3, 8) in the model; received (10, 8)"
    )
    after = model.state_dict()
    for name in BODY:
        np.testing.assert_array_equal(after[name], theirs[f"module.{name}"].numpy())
    assert (after["head.weight"] == before["head.weight"]).all()

    twin = Theirs(3)
    twin.load_state_dict({name: torch.tensor(array) for name, array in after.items()}, strict=False)
    rule, losses = torch.optim.SGD(twin.parameters(), lr=0.1), []
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(twin(torch.tensor(X)), torch.tensor(Y).long())
        rule.zero_grad()
        loss.backward()
        rule.step()
        losses.append(float(loss.detach()))
    how: dict[str, Any] = {"batch_size": 32, "shuffle": False, "options": quick(), "progress": False}
    history = ws.fit(model, (X, Y), loss="cross_entropy", optimizer=ws.SGD(lr=0.1), epochs=3, **how)
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-4)
    model.save(file)
    assert str(Net(3).load(file)) == "8 arrays loaded"


def test_without_strict_a_prefix_is_told_in_the_report_too() -> None:
    model = Net(3)
    before = model.state_dict()
    report = model.load_state_dict(wrapped(3), strict=False)
    assert report.loaded == ()
    assert str(report).startswith("0 arrays loaded\nmissing in the file, left as they were: ")
    assert report.hint == "Pass rename={'module.': ''}: 9 of 9 names are then the model's."
    assert unchanged(model, before)


@pytest.mark.parametrize("before", ["module.", "model.", "_orig_mod.", "_orig_mod.module."])
def test_any_prefix_is_found(before: str) -> None:
    values = {before + name: value for name, value in Theirs(3).state_dict().items()}
    with pytest.raises(ws.errors.UnknownNameError, match=re.escape(f"Pass rename={{{before!r}: ''}}: 9 of 9 names")):
        Net(3).load_state_dict(values)
    assert len(Net(3).load_state_dict(values, rename={before: ""}).loaded) == 8


def test_a_prefix_of_the_model_is_found() -> None:
    values = {name.removeprefix("body."): a for name, a in Net(3).state_dict().items() if name in BODY}
    with pytest.raises(ws.errors.UnknownNameError, match=r"Pass rename=\{'': 'body.'\}: 6 of 6 names"):
        Net(3).load_state_dict(values)
    assert len(Net(3).load_state_dict(values, strict=False, rename={"": "body."}).loaded) == 6


def test_names_go_by_paths_the_longest_first_and_by_functions() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(2, 2), ws.nn.Linear(2, 2))
    w, b = np.ones((2, 2)), np.ones(2)
    values = {"net.fc.weight": w, "net.fc.bias": b, "net.fc2.weight": 2 * w, "shift": 2 * b, "net.steps": b}
    paths = {"net": "", "net.fc": "0", "net.fc2.": "1.", "shift": "1.bias", "net.steps": None}
    swapped = {"net.fc.weight": "1.weight", "net.fc.bias": "1.bias", "net.fc2.weight": "0.weight", "shift": "0.bias"}
    for rename, factors in ((paths, [1, 1, 2, 2]), (swapped.get, [2, 2, 1, 1])):
        report = model.load_state_dict(values, rename=rename)
        assert len(report.loaded) == 4
        assert [array.mean() for array in model.state_dict().values()] == factors


def test_errors_list_all_up_to_a_bound() -> None:
    model = ws.nn.Sequential(*[ws.nn.Linear(2, 2) for _ in range(15)])
    wrong = {name: np.ones(5) for name in model.state_dict()}
    with pytest.raises(ws.errors.ShapeError) as shapes:
        model.load_state_dict(wrong)
    assert str(shapes.value).count("received (5,)") == 20
    assert "\n  and 10 more\nGive arrays of the model's names and shapes" in str(shapes.value)
    one = {**wrong, "0.bias": np.ones(2), "gain": np.ones(2)}
    assert str(model.load_state_dict(one, strict=False)).count("received (5,)") == 29, "a report shows all"
    with pytest.raises(
        ws.errors.UnknownNameError, match=r"(?s)the names and shapes do not.*model: gain\nof another shape"
    ):
        model.load_state_dict(one)


def test_what_cannot_be_meant_is_refused_and_nothing_changes() -> None:
    model = ws.nn.Linear(4, 2)
    before, values = model.state_dict(), {"a.weight": np.ones((2, 4)), "a.bias": np.ones(2)}
    wrong: list[tuple[Any, type[Exception], str]] = [
        (
            {"b.": ""},
            ws.errors.OptionError,
            r"'b.' of rename is neither a name nor the prefix of one: a.weight, a.bias. Correct it",
        ),
        (
            {"a.weight": "bias", "a": ""},
            ws.errors.InputError,
            r"'a.weight' and 'a.bias' the same name, 'bias'. .* None",
        ),
        ("a.", ws.errors.UsageError, r"rename takes a dict of names or prefixes.* received 'a.'"),
        ({0: ""}, ws.errors.UsageError, r"names or prefixes as keys.* received 0"),
        (len, ws.errors.UsageError, r"rename gives a name, or None .* received 8 for 'a.weight'"),
    ]
    for rename, kind, text in wrong:
        with pytest.raises(kind, match=text):
            model.load_state_dict(values, rename=rename)
    with pytest.raises(ws.errors.UsageError, match="received 0 as a name"):
        model.load_state_dict({0: np.ones(2)})  # type: ignore[dict-item]
    # One array of the wrong shape, and nothing else, is a mistake and no part of a whole.
    with pytest.raises(ws.errors.ShapeError, match=r"(?s)'weight' has shape \(2, 4\).*received \(4, 2\).*Give arrays"):
        model.load_state_dict({"weight": np.ones((4, 2))}, strict=False)
    with pytest.raises(ws.errors.InputError, match="cannot hold"):
        model.load_state_dict({"weight": np.ones((2, 4)), "bias": np.full(2, 1e300)}, strict=False)
    assert unchanged(model, before)
