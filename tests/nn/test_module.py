"""What a module is: names, attributes, tracing, freezing, tied weights, files, predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import wholestep as ws

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


class Block(ws.nn.Module):
    def __init__(self, width: int) -> None:
        self.norm, self.up = ws.nn.LayerNorm(width), ws.nn.Linear(width, 4 * width)
        self.downs = [ws.nn.Linear(4 * width, width), ws.nn.Linear(width, width)]
        self.heads = {"a": ws.nn.Linear(width, 2)}
        self.scale = ws.nn.Parameter((width,), init=1.0)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        y = ws.gelu(self.up(self.norm(x)))
        for down in self.downs:
            y = down(y)
        return self.heads["a"](x + self.scale * y)


def test_names_follow_from_the_attributes() -> None:
    names = list(Block(4).parameters())
    assert set(names) == {
        "scale", "norm.weight", "norm.bias", "up.weight", "up.bias", "downs.0.weight", "downs.0.bias",
        "downs.1.weight", "downs.1.bias", "heads.a.weight", "heads.a.bias",
    }  # fmt: skip


def test_a_call_on_arrays_predicts_with_the_models_numbers() -> None:
    model = ws.nn.Linear(4, 2)
    w, b = model.state_dict()["weight"], model.state_dict()["bias"]
    np.testing.assert_allclose(model(X), X @ w.T + b, rtol=1e-5)
    np.testing.assert_allclose(model.predict(X.astype(np.float64)[:3]), (X @ w.T + b)[:3], rtol=1e-5)
    model.load_state_dict({"weight": 2 * w, "bias": b})
    np.testing.assert_allclose(model(X), 2 * X @ w.T + b, rtol=1e-5)


def test_predictions_are_compiled_for_the_next_power_of_two_once() -> None:
    model = ws.nn.Linear(4, 2)
    for rows in (3, 4, 3):
        model(X[:rows])
    assert len(model.__dict__["_predictors"].by_key) == 1
    model(X)
    assert len(model.__dict__["_predictors"].by_key) == 2


def test_a_model_can_be_forgotten() -> None:
    import gc
    import weakref

    model = ws.nn.Linear(4, 2)
    model(X)
    ghost = weakref.ref(model)
    del model
    gc.collect()
    assert ghost() is None


def test_a_module_called_twice_in_a_graph_is_the_same_module() -> None:
    g = ws.Graph()
    layer = ws.nn.Linear(4, 4)
    x = g.input("x", ("batch", 4))
    g.set_outputs([layer(layer(x))])
    assert list(g.parameters) == ["weight", "bias"]


def test_gradients_of_a_module_come_by_name() -> None:
    g = ws.Graph()
    model = ws.nn.Sequential(ws.nn.Linear(4, 3), ws.nn.ReLU())
    loss = model(g.input("x", ("batch", 4))).mean()
    assert list(ws.gradients(loss, model)) == ["0.weight", "0.bias"]
    with pytest.raises(ws.errors.UsageError, match="was not called in the graph"):
        ws.gradients(loss, ws.nn.Linear(4, 3))


def test_tied_weights_are_one_array_under_two_names() -> None:
    class Tied(ws.nn.Module):
        def __init__(self) -> None:
            self.embedding, self.head = ws.nn.Embedding(6, 4), ws.nn.Linear(4, 6, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: ws.Tensor) -> ws.Tensor:
            return self.head(self.embedding(tokens))

    model = Tied()
    assert list(model.parameters()) == ["embedding.weight"]
    both = model.state_dict()
    assert list(both) == ["embedding.weight", "head.weight"]
    tokens, w = np.array([[0, 5]]), both["head.weight"]
    np.testing.assert_allclose(model(tokens), w[tokens] @ w.T, rtol=1e-5)
    assert model.load_state_dict({"head.weight": np.ones((6, 4))}).missing == ()
    assert (model.state_dict()["embedding.weight"] == 1).all()


def test_freezing_goes_by_pattern() -> None:
    model = Block(4).freeze("norm.*", "*.bias")
    frozen = {name for name, p in model.parameters().items() if p.frozen}
    assert frozen == {"norm.weight", "norm.bias", "up.bias", "downs.0.bias", "downs.1.bias", "heads.a.bias"}
    assert not any(p.frozen for p in model.unfreeze("*").parameters().values())
    with pytest.raises(ws.errors.OptionError, match=r"'tail\.\*' matches none of the parameters: scale"):
        model.freeze("tail.*")


def test_weights_go_to_torch_and_back(tmp_path: Path) -> None:
    model, file = Block(4), tmp_path / "weights.safetensors"
    model.save(file)
    theirs = load_file(file)
    assert {name: tuple(t.shape) for name, t in theirs.items()} == {k: v.shape for k, v in model.state_dict().items()}
    save_file({name: t + 1 for name, t in theirs.items()}, file)
    before = model.state_dict()
    assert str(model.load(file)) == "11 arrays loaded"
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name] + 1)


def test_half_precision_weights_load() -> None:
    model = ws.nn.Linear(4, 2)
    model.load_state_dict(torch.nn.Linear(4, 2).to(torch.bfloat16).state_dict())
    assert model.state_dict()["weight"].dtype == np.float32


def test_what_does_not_match_is_reported_and_nothing_changes(tmp_path: Path) -> None:
    model = ws.nn.Linear(4, 2)
    before = model.state_dict()
    with pytest.raises(ws.errors.UnknownNameError, match=r"(?s)missing in the file.*bias.*not in the model: gain"):
        model.load_state_dict({"weight": np.ones((2, 4)), "gain": np.ones(2)})
    with pytest.raises(ws.errors.ShapeError, match=r"'weight' has shape \(2, 4\) in the model; received \(4, 2\)"):
        model.load_state_dict({"weight": np.ones((4, 2)), "bias": np.ones(2)})
    report = model.load_state_dict({"gain": np.ones(2)}, strict=False)
    assert (report.loaded, report.missing, report.unexpected) == ((), ("weight", "bias"), ("gain",))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(ws.errors.CheckpointError, match="not a complete safetensors file"):
        model.load(broken)
    with pytest.raises(ws.errors.CheckpointError, match="there is no file"):
        model.load(tmp_path / "none.safetensors")
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_saving_to_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ws.errors.CheckpointError, match="could not be written"):
        ws.nn.Linear(4, 2).save(tmp_path / "none" / "w.safetensors")


@pytest.mark.parametrize("habit", ["train", "eval", "zero_grad", "cuda", "half", "fit"])
def test_habits_of_other_libraries_are_answered(habit: str) -> None:
    with pytest.raises(ws.errors.HabitError, match=f"a module has no `{habit}`"):
        getattr(ws.nn.Linear(4, 2), habit)


def test_the_summary_counts_exactly() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10)).freeze("2.bias")
    summary = model.summary(ws.Spec(("batch", 784)))
    assert (summary.parameters, summary.trained) == (101770, 101760)
    assert summary.flops == 2 * 784 * 128 + 128 + 128 + 2 * 128 * 10 + 10
    assert [(r.path, r.output, r.parameters, r.bytes) for r in summary.rows] == [
        ("0", "(batch, 128)", 100480, 512),
        ("1", "(batch, 128)", 0, 512),
        ("2", "(batch, 10)", 1290, 40),
    ]
    assert "101,770 parameters; 10 of them frozen" in str(summary)


def test_dropout_keys_follow_the_path() -> None:
    g = ws.Graph()
    model = ws.nn.Sequential(ws.nn.Linear(4, 4), ws.nn.Dropout(0.5), ws.nn.Residual(ws.nn.Dropout(0.1)))
    model(g.input("x", ("batch", 4)))
    assert list(g.scalars) == ["1/random0.rate", "2/body/random0.rate"]


def test_astype_comes_before_the_numbers() -> None:
    model = ws.nn.Linear(4, 2).astype("float64")
    assert model(X).dtype == np.float64
    with pytest.raises(ws.errors.UsageError, match="has numbers already"):
        model.astype("float32")
