"""What losses refuse, by the text a user reads; names, descriptions and examples."""

from __future__ import annotations

import json

import numpy as np
import pytest

import wholestep as ws
from wholestep import losses
from wholestep.errors import DTypeError, InputError, OptionError, ShapeError, UnknownNameError, UsageError


@pytest.fixture
def g() -> ws.Graph:
    return ws.Graph()


@pytest.fixture
def logits(g: ws.Graph) -> ws.Tensor:
    return g.input("logits", (4, 3))


def test_wrong_targets_of_cross_entropy(g: ws.Graph, logits: ws.Tensor) -> None:
    with pytest.raises(DTypeError, match=r"holds probabilities and needs dtype float32; received int32"):
        losses.cross_entropy(logits, g.input("one_hot", (4, 3), "int32"))
    with pytest.raises(ShapeError, match=r"need labels of shape \(4,\); received \(5,\)"):
        losses.cross_entropy(logits, g.input("labels", (5,), "int32"))
    with pytest.raises(DTypeError, match=r"class indices of an integer dtype; received float32. Cast them"):
        losses.cross_entropy(logits, g.input("float_labels", (4,)))
    with pytest.raises(OptionError, match="ignore_index needs class indices"):
        losses.cross_entropy(logits, logits, ignore_index=0)


def test_labels_out_of_range_change_nothing() -> None:
    g = ws.Graph()
    scores = g.input("x", ("batch", 3)) * g.parameter("w", (3,), init=1.0)
    g.set_outputs([losses.cross_entropy(scores, g.input("labels", ("batch",), "int32"))])
    session = ws.build_session(g, batch_size=4)
    with pytest.raises(InputError, match=r"holds indices from 0 to 2; received 3 at position 1"):
        session.step(x=np.zeros((2, 3), np.float32), labels=np.array([0, 3], np.int32))
    np.testing.assert_array_equal(session.get("w"), 1.0)


def test_wrong_weights(g: ws.Graph, logits: ws.Tensor) -> None:
    labels = g.input("labels", (4,), "int32")
    with pytest.raises(ShapeError, match=r"one number for each class, shape \(3,\); received \(4,\).*sample_weight="):
        losses.cross_entropy(logits, labels, class_weight=[1.0, 1.0, 1.0, 1.0])
    with pytest.raises(ShapeError, match=r"one number for each row, shape \(4,\); received \(4, 1\)"):
        losses.mse_loss(logits, logits, sample_weight=g.input("w", (4, 1)))
    with pytest.raises(DTypeError, match=r"needs the dtype of the loss, float32; received int32"):
        losses.cross_entropy(logits, labels, sample_weight=labels)
    with pytest.raises(ShapeError, match=r"the variance has the shape of the mean, \(4, 3\); received \(4,\)"):
        losses.gaussian_nll_loss(logits, logits, g.input("v", (4,)))
    with pytest.raises(OptionError, match="dice sees a batch as a whole and takes no weights of rows"):
        losses.Loss("dice")(logits, labels, g.input("w4", (4,)))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: losses.mse_loss(x, x, reduction="average"), "'mean', 'sum' or 'none'; received 'average'"),
        (lambda x: losses.huber_loss(x, x, 0), "huber_loss: delta must be above 0; received 0"),
        (lambda x: losses.quantile_loss(x, x, 1.0), "quantile must be between 0 and 1; received 1.0"),
        (lambda x: losses.cross_entropy(x, x, label_smoothing=1.0), "at least 0 and below 1; received 1.0"),
        (lambda x: losses.focal_loss(x, x, -1.0), "gamma must be at least 0; received -1.0"),
        (lambda x: losses.focal_loss(x, x, class_weight=[1.0] * 3), "class_weight is for class indices"),
        (lambda x: losses.info_nce_loss(x, x, 0.0), "temperature must be above 0; received 0.0"),
        (lambda x: losses.gaussian_nll_loss(x, x, x, eps=0.0), "eps must be above 0; received 0.0"),
        (lambda x: losses.huber_loss(x, x, True), "delta must be above 0; received True"),
    ],
)
def test_options_out_of_range(logits: ws.Tensor, call, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        call(logits)


def test_shapes_of_the_rest(g: ws.Graph, logits: ws.Tensor) -> None:
    with pytest.raises(ShapeError, match=r"shape \(\.\.\., 2\); received \(4, 3\)"):
        losses.gaussian_nll_loss(logits, g.input("t", (4,)))
    with pytest.raises(ShapeError, match=r"\(rows, features\); received \(4,\)"):
        losses.info_nce_loss(g.input("q", (4,)), g.input("k", (4,)))
    for loss in (losses.dice_loss, losses.hinge_loss):
        with pytest.raises(ShapeError, match=r"need labels of shape \(4,\); received \(5,\)"):
            loss(logits, g.input(loss.__name__, (5,), "int32"))
    with pytest.raises(DTypeError, match=r"prediction's dtype, float32; received int32. Cast it"):
        losses.mse_loss(logits, g.input("whole", (4, 3), "int32"))


# -- by name -----------------------------------------------------------------------------------------------------


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(UnknownNameError, match=r"no loss 'crossentropy'. Did you mean 'cross_entropy'"):
        losses.get("crossentropy")
    with pytest.raises(OptionError, match=r"cross_entropy has no option 'smoothing'. Did you mean 'label_smoothing'"):
        losses.Loss("cross_entropy", smoothing=0.1)
    with pytest.raises(UsageError, match=r"a loss is a name such as 'cross_entropy'.*received 3"):
        losses.get(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"needs a 'kind', e.g. 'mse'; received \{'delta': 1.0\}"):
        losses.Loss.from_config({"delta": 1.0})


@pytest.mark.parametrize("name", losses.LOSSES)
def test_descriptions_make_the_same_loss(name: str) -> None:
    loss = losses.Loss(name)
    assert losses.Loss.from_config(json.loads(json.dumps(loss.to_config()))) == loss
    for alias in losses.LOSSES[name].aliases:
        assert losses.get(alias) == loss


def test_options_of_a_description_are_used(g: ws.Graph, logits: ws.Tensor) -> None:
    config = {"kind": "huber", "delta": 2.0, "reduction": "sum"}
    loss = losses.get(config)(logits, logits)
    assert loss.node.op == "sum"
    assert g.scalars["huber_loss.delta"].node.attrs.default == 2.0


@pytest.mark.parametrize("name", [n for n in losses.__all__ if callable(getattr(losses, n)) and n[0].islower()])
def test_examples_run(name: str) -> None:
    g = ws.Graph()
    known = {"ws": ws, "x": g.input("x", (4, 3)), "w": g.parameter("w", (3, 2)), "y": g.input("y", (4, 2))}
    known |= dict.fromkeys(("logits", "probabilities", "targets"), known["x"])
    known["labels"] = g.input("l", (4,), "int32")
    example = getattr(losses, name).__doc__.split("Example: `")[1].split("`")[0]
    result = eval(example, known)  # noqa: S307
    assert isinstance(result, float) or result.shape == ()


# -- on arrays ---------------------------------------------------------------------------------------------------


def test_value_and_grad_of_weighted_rows_and_of_a_batch_of_another_size() -> None:
    rng = np.random.default_rng(0)
    for rows in (3, 4):
        p, t, w = rng.normal(size=(rows, 3)), rng.normal(size=(rows, 3)), rng.uniform(size=rows)
        loss, slope = losses.value_and_grad("mse", p, t, sample_weight=w)
        error, total = p - t, 3 * w.sum()
        np.testing.assert_allclose(loss, (w[:, None] * error**2).sum() / total, rtol=1e-12)
        np.testing.assert_allclose(slope, 2 * w[:, None] * error / total, rtol=1e-12)


def test_value_and_grad_compiles_once_for_each_kind_of_arguments() -> None:
    from wholestep.losses.arrays import _session

    losses.value_and_grad("mae", np.ones((5, 2)), np.zeros((5, 2)))
    made = _session.cache_info().misses
    loss, _ = losses.value_and_grad(losses.mae_loss, np.ones((8, 2)), np.zeros((8, 2)))
    assert (loss, _session.cache_info().misses) == (1.0, made)


def test_what_value_and_grad_refuses() -> None:
    with pytest.raises(DTypeError, match=r"the prediction is float32 or float64; received int64"):
        losses.value_and_grad("mse", [1, 2], [1.0, 2.0])
    with pytest.raises(ShapeError, match=r"must be one number; received shape \(2,\). Use reduction='mean'"):
        losses.value_and_grad("mse", [1.0, 2.0], [1.0, 2.0], reduction="none")
    with pytest.raises(OptionError, match=r"options are numbers, words or arrays"):
        losses.value_and_grad("mse", [1.0], [1.0], reduction={})


# -- labels outside the classes, where one of them is ignored ------------------------------------------------------


@pytest.mark.parametrize("ignored", [-1, 255])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_of_labels_outside_the_classes_the_ignored_one_alone_is_accepted(ignored: int, smoothing: float) -> None:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 3)), g.input("labels", ("batch",), "int32")
    logits = x @ g.parameter("w", (3, 4))
    g.set_outputs(
        [ws.losses.cross_entropy(logits, labels, ignored, label_smoothing=smoothing, class_weight=[1, 2, 1, 1])]
    )
    session = ws.build_session(g, batch_size=6)
    rows, good = np.ones((6, 3), np.float32), np.array([0, 3, ignored, 1, 2, ignored], np.int32)
    assert np.isfinite(session.step(x=rows, labels=good).loss)
    assert np.isfinite(session.step(x=rows, labels=good).loss)  # the quick path
    before = session.get("w")
    for value in (4, -2, 254):
        bad = good.copy()
        bad[4] = value
        text = rf"'labels' holds indices from 0 to 3, or {ignored} to be ignored; received {value} at position 4"
        for call in (session.step, session.run, session.evaluate):
            with pytest.raises(InputError, match=text):
                call(x=rows, labels=bad)
    assert (session.get("w") == before).all()
