"""The first lines that users of Keras and PyTorch type: each works, or says what to write."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import HabitError, InputError, OptionError, ShapeError, UsageError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 24).astype(np.int32)


def mlp() -> ws.nn.Sequential:
    return ws.nn.Sequential(ws.nn.Linear(6, 5), ws.nn.ReLU(), ws.nn.Linear(5, 3))


def fit(model: ws.nn.Module | None = None, data: object = (X, Y), **options: Any) -> ws.TrainHistory:
    given = {"loss": "cross_entropy", "batch_size": 8, "progress": False, **options}
    return ws.fit(model or mlp(), data, **given)


# -- what is answered ------------------------------------------------------------------------------------------------


def loss() -> Any:
    return ws.losses.cross_entropy(mlp()(X), Y)


def gradient_of_one() -> Any:
    g = ws.Graph()
    w = g.parameter("w", (3,))
    return ws.gradients((w * w).sum(), w)


ON_A_GPU = r"the device belongs to the run: ws\.fit\(\.\.\., device='cuda'\)"
RANKS = r"`wholestep launch -n 4 train\.py` with ws\.fit\(\.\.\., workers=ws\.Workers\(4\)\)"
ANSWERED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "loss.backward()": (
        lambda: loss().backward(),
        HabitError,
        r"no `backward`: .*ws\.compute_gradients\(loss, model\)",
    ),
    "loss.detach()": (lambda: loss().detach(), HabitError, "it is a float already"),
    "register_hook": (
        lambda: mlp()[0].weight.register_hook(print),
        HabitError,
        r"in a @ws\.step, between ws\.gradients",
    ),
    "predict(steps=)": (
        lambda: mlp().predict(X, steps=3),
        UsageError,
        r"steps=3 is not supported: .*model\.predict\(x\[:n\]\)",
    ),
    "evaluate(steps=)": (
        lambda: mlp().evaluate(X, Y, loss="mse", steps=3),
        UsageError,
        "steps=3 is not supported: all rows",
    ),
    "evaluate without a loss": (
        lambda: mlp().evaluate(X, Y),
        UsageError,
        r"loss= is missing, and this Sequential was not fit",
    ),
    "evaluate(unknown=)": (lambda: mlp().evaluate(X, Y, los="mse"), UsageError, "Did you mean loss="),
    "predict(x, 32)": (lambda: mlp().predict(X, 32), UsageError, "Sequential takes x; received 2 arrays"),
    "evaluate(x, y, 32)": (lambda: mlp().evaluate(X, Y, 32), UsageError, "evaluate takes x, y by position; received"),
    "summary(input_size=)": (lambda: mlp().summary(input_size=(1, 6)), UsageError, r"model\.summary\(ws\.Spec\("),
    "to('cuda')": (
        lambda: mlp().to("cuda"),
        HabitError,
        r"'cuda'; the device belongs to the run: ws\.fit\(\.\.\., device='cuda'",
    ),
    "to(torch.device)": (
        lambda: mlp().to(torch.device("cuda:1")),
        HabitError,
        r"device='cuda:1'\), also of ws\.build_session",
    ),
    "cuda()": (lambda: mlp().cuda(), HabitError, ON_A_GPU),
    "ws.device": (lambda: ws.device("cuda"), HabitError, ON_A_GPU),
    "ws.cuda": (lambda: ws.cuda.is_available(), HabitError, ON_A_GPU + ".*wholestep doctor"),
    "DataParallel": (lambda: ws.nn.DataParallel(mlp()), HabitError, RANKS),
    "nn.parallel": (lambda: ws.nn.parallel.DistributedDataParallel, HabitError, RANKS),
    "distributed": (lambda: ws.distributed.init_process_group, HabitError, RANKS),
    "distribution": (lambda: ws.distribution, HabitError, RANKS),
    "SyncBatchNorm": (
        lambda: ws.nn.SyncBatchNorm(3),
        HabitError,
        r"ws\.nn\.BatchNorm2d: its batch is that of all workers",
    ),
    "StepLR without an optimizer": (
        lambda: ws.schedules.StepLR(step_size=1),
        UsageError,
        r"StepLR takes the optimizer first.*ws\.schedules\.StepDecay\(None, 10, gamma=0\.1, unit='epoch'\)",
    ),
    "StepLR(None)": (
        lambda: ws.schedules.StepLR(None, 1),
        UsageError,
        r"received None\. Without one write ws\.schedules\.StepDecay",
    ),
    "one example": (
        lambda: mlp()(X[0]),
        ShapeError,
        r"received \(batch,\)\. For one example, a batch of one, write x\[None\]",
    ),
    "one image": (
        lambda: ws.nn.Conv2d(3, 4, 3).predict(np.zeros((3, 8, 8), "f")),
        ShapeError,
        r"one example.* write x\[None\]",
    ),
    "a gradient in a list": (
        lambda: ws.std(gradient_of_one()),
        UsageError,
        r"received a OneGradient|a list.*Take one out",
    ),
    "its mean": (lambda: gradient_of_one().mean(), UsageError, r"\(slope,\) = ws\.gradients\(loss, w\)"),
    "twice it": (lambda: gradient_of_one() * 2, UsageError, r"ws\.gradients gives a list: take the gradient out"),
    "tensors in a list": (
        lambda: ws.std([*gradient_of_one()]),
        UsageError,
        r"received a list with 1 of them.*ws\.stack",
    ),
    "value_and_grad of rows": (
        lambda: ws.losses.value_and_grad("mse", X, X, reduction="none"),
        ShapeError,
        "must be one number",
    ),
    "booleans": (
        lambda: fit(data=(X, Y > 0)),
        InputError,
        r"one score for each row give loss='bce'.*y\.astype\('int32'\)",
    ),
    "get_layer": (lambda: mlp().get_layer("dense"), ws.errors.UnknownNameError, "no module 'dense'; it has: 0, 1, 2"),
    "clone": (lambda: mlp().clone(), HabitError, r"copy\.deepcopy\(model\)"),
}


@pytest.mark.parametrize("case", ANSWERED)
def test_what_is_not_here_says_what_to_write(case: str) -> None:
    call, kind, text = ANSWERED[case]
    with pytest.raises(kind, match=text):
        call()


NAMES = (
    "load_model save_model plot_model to_categorical clone_model image_dataset_from_directory keras LambdaCallback "
    "set_random_seed seed_everything grad jacrev jvp vjp Resize Rotate "
    "RandomRotation Compose ToTensor pad_sequence pad_sequences pack_padded_sequence Tokenizer "
    "TextVectorization timeseries_dataset_from_array"
)


@pytest.mark.parametrize("place", ["ws", "ws.nn", "ws.data", "ws.models", "ws.datasets", "ws.utils"])
def test_helpers_are_answered_wherever_they_are_looked_for(place: str) -> None:
    owner = ws
    for part in place.split(".")[1:]:
        owner = getattr(owner, part)
    for name in NAMES.split():
        if (place, name) in {("ws.nn", "grad")}:
            continue  # torch.nn.grad is another one
        with pytest.raises(HabitError, match=rf"there is no `{place}\.{name}`: .{{20,}}"):
            getattr(owner, name)


@pytest.mark.parametrize("name", sorted({*torch.nn.utils.rnn.__all__} - {"invert_permutation"}))
def test_ragged_sequences_are_not_answered_with_clipping(name: str) -> None:
    with pytest.raises(HabitError, match=r"different lengths .*ws\.data\.Ragged"):
        getattr(ws.nn.utils.rnn, name)


def test_names_of_torch_nn_utils() -> None:
    assert ws.nn.utils.weight_norm is ws.nn.weight_norm
    with pytest.raises(
        HabitError, match=r"no `ws\.nn\.utils\.clip_grad_norm_`: write ws\.fit\(\.\.\., clip_norm=1\.0\)"
    ):
        ws.nn.utils.clip_grad_norm_([], 1.0)
    with pytest.raises(HabitError, match=r"no `ws\.nn\.utils\.anything`: gradients are clipped by"):
        _ = ws.nn.utils.anything


KERAS_CALLBACKS = (
    "BackupAndRestore CSVLogger Callback CallbackList EarlyStopping History LambdaCallback LearningRateScheduler "
    "ModelCheckpoint ProgbarLogger ReduceLROnPlateau RemoteMonitor SwapEMAWeights TensorBoard TerminateOnNaN"
)


@pytest.mark.parametrize("name", KERAS_CALLBACKS.split())
def test_callbacks_of_keras_are_there_or_answered_with_what_exists(name: str) -> None:
    try:
        assert getattr(ws.callbacks, name) is not None
    except HabitError as error:
        assert "write" in str(error) or "ws." in str(error)  # noqa: PT017


def test_no_answer_denies_gpus_or_several_machines() -> None:
    from wholestep.interop.names import all_tables

    texts = [text for t in all_tables() for text in (*t.say.values(), *t.differs.values(), *(g for _, g in t.groups))]
    denied = ("on one machine", "CPUs only", "in one process", "device='cpu'")
    assert [text for text in texts if any(words in text for words in denied)] == []


# -- what works ------------------------------------------------------------------------------------------------------


def test_predict_takes_keras_words() -> None:
    model = mlp()
    expected = model.predict(X)
    np.testing.assert_array_equal(model.predict(X, verbose=0), expected)
    np.testing.assert_array_equal(model.predict(X, batch_size=5, verbose="auto", callbacks=None), expected)

    class Verbose(ws.nn.Module):
        def forward(self, x: Any, verbose: Any) -> Any:
            return x * verbose

    np.testing.assert_allclose(Verbose().predict(X, verbose=X), X * X)  # here `verbose` is an input of the model


def test_evaluate_measures_what_the_model_was_fitted_with() -> None:
    model = mlp()
    fit(model, metrics=["accuracy"])
    expected = model.evaluate(X, Y, loss="cross_entropy", metrics=["accuracy"])
    assert model.evaluate(X, Y) == expected
    assert model.evaluate(X, Y, verbose=0, return_dict=True) == expected
    assert model.evaluate(X, Y, loss="cross_entropy") == {"loss": expected["loss"]}
    assert set(model.evaluate(X, Y, metrics=["f1"])) == {"loss", "f1"}
    with pytest.raises(UsageError, match="loss= is missing"):
        copy.deepcopy(model).evaluate(X, Y)
    fit(model, loss=lambda scores, labels: {"a": ws.losses.cross_entropy(scores, labels)}, loss_weights={"a": 0.5})
    with pytest.raises(UsageError, match="or was fitted with loss_weights="):
        model.evaluate(X, Y)


def test_summary_takes_a_function_to_print_with() -> None:
    lines: list[str] = []
    found = mlp().summary(ws.Spec(("batch", 6)), print_fn=lines.append, line_length=80, expand_nested=True)
    assert lines == [str(found)]


def test_layers_by_name_and_place() -> None:
    model = mlp()
    assert model.get_layer("0") is model[0]
    assert model.get_layer(index=2) is model[2]
    with pytest.raises(ws.errors.UnknownNameError, match="has 3 layers; received index=3"):
        model.get_layer(index=3)
    assert ws.nn.Model is ws.nn.Module


@pytest.mark.parametrize("way", ["fit", "predict", "evaluate", "a session", "estimate"])
def test_devices_of_torch_are_taken(way: str) -> None:
    calls: dict[str, Callable[[Any], object]] = {
        "fit": lambda device: fit(device=device),
        "predict": lambda device: mlp().predict(X, device=device),
        "evaluate": lambda device: mlp().evaluate(X, Y, loss="cross_entropy", device=device),
        "a session": lambda device: ws.build_inference_session(
            mlp(), inputs=ws.Spec(("batch", 6)), batch_size=8, device=device
        ),
        "estimate": lambda device: ws.estimate(
            mlp(), inputs=ws.Spec(("batch", 6)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy",
            batch_size=8, device=device,
        ),
    }  # fmt: skip
    calls[way](torch.device("cpu"))
    errors = []
    for device in (torch.device("cuda:7"), "cuda:7"):
        with pytest.raises(OptionError) as caught:
            calls[way](device)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]  # as the text would be


def test_models_stay_where_they_are() -> None:
    model = mlp()
    assert model.to(torch.device("cpu")) is model.to("cpu") is model


def test_losses_of_rows() -> None:
    scores = mlp().predict(X)
    rows = ws.losses.cross_entropy(scores, Y, reduction="none")
    theirs = torch.nn.functional.cross_entropy(torch.tensor(scores), torch.tensor(Y).long(), reduction="none")
    np.testing.assert_allclose(rows, theirs.numpy(), rtol=1e-5)
    np.testing.assert_allclose(ws.losses.mse(X, 0.5 * X, reduction="none"), (0.5 * X) ** 2, rtol=1e-6)
    assert float(ws.losses.cross_entropy(scores, Y)) == pytest.approx(rows.mean(), rel=1e-5)
    np.testing.assert_allclose(ws.losses.cross_entropy(scores[:5], Y[:5], reduction="none"), rows[:5], rtol=1e-6)


def test_a_plateau_without_a_rate_has_the_optimizers() -> None:
    history = fit(schedule=ws.schedules.ReduceOnPlateau(None, factor=0.5), optimizer=ws.Adam(lr=0.25))
    assert history["lr"] == [0.25]


@pytest.mark.filterwarnings("ignore:the schedule of optimizer.lr")  # it is longer than the run
@pytest.mark.parametrize(
    "schedule",
    ["StepDecay(None, 10, gamma=0.1, unit='epoch')", "MultiStep(None, (10, 20), gamma=0.1, unit='epoch')",
     "Exponential(None, 0.95, unit='epoch')", "Cosine(None, 10, unit='epoch')", "Polynomial(None, 10, unit='epoch')"],
)  # fmt: skip
def test_schedules_that_are_advised_have_torchs_values(schedule: str) -> None:
    from wholestep.schedules.rates import UNBOUND

    kind = next(kind for kind, text in UNBOUND.items() if text == f"ws.schedules.{schedule}")
    options: dict[str, dict[str, Any]] = {
        "StepLR": {"step_size": 10}, "MultiStepLR": {"milestones": (10, 20)}, "ExponentialLR": {"gamma": 0.95},
        "CosineAnnealingLR": {"T_max": 10}, "PolynomialLR": {"total_iters": 10},
    }  # fmt: skip
    optimizer = ws.SGD(lr=0.5)
    theirs = fit(optimizer=optimizer, schedule=getattr(ws.schedules, kind)(optimizer, **options[kind]), epochs=3)
    ours = fit(optimizer=ws.SGD(lr=0.5), schedule=eval(f"ws.schedules.{schedule}"), epochs=3)  # noqa: S307
    np.testing.assert_allclose(ours["lr"], theirs["lr"], rtol=1e-6)


def test_a_program_of_fixed_sizes_has_no_batch_size() -> None:
    @ws.step(inputs={"x": ws.Spec((8, 6))})
    def step(g: ws.Graph, x: ws.Tensor) -> ws.Tensor:
        w = g.parameter("w", (6,))
        loss: ws.Tensor = ((x * w).sum(1) ** 2).mean()
        ws.SGD(lr=0.1).update(g, {"w": w}, {"w": ws.gradients(loss, [w])[0]})
        return loss

    with pytest.raises(
        OptionError, match=r"batch_size=8: all sizes of this program are fixed.*ws\.Spec\(\('batch', 4\)\)"
    ):
        ws.build_session(step, batch_size=8)
    with pytest.raises(OptionError, match=r"capacity=\{'time': 3\}: all sizes of this program are fixed"):
        ws.build_session(step, capacity={"time": 3})
    assert np.isfinite(float(ws.build_session(step).step(x=X[:8])))


def test_a_search_for_a_rate_prints_a_summary() -> None:
    found = ws.find_lr(mlp(), (X, Y), loss="cross_entropy", steps=20)
    assert str(found).startswith("20 learning rates tried, from 1e-06 to 10")
    assert len(str(found).splitlines()) == 3
    assert repr(found) == str(found)
    assert "no suggestion" in str(type(found)((0.1, 0.2), (1.0, 2.0)))


def test_what_is_advised_for_gradients_is_right() -> None:
    """Rows of a Jacobian, a product with the Hessian, a product from the left."""

    @ws.step(inputs={"v": ws.Spec((4,))})
    def step(g: ws.Graph, v: ws.Tensor) -> dict[str, ws.Tensor]:
        w = g.parameter("w", (4,), init=[1.0, 2.0, 3.0, 4.0])
        y, loss = w * w * v, (w * w * w).sum()
        (slope,) = ws.gradients(loss, [w])
        (product,) = ws.gradients((slope * v).sum(), [w])
        (left,) = ws.gradients((y * v).sum(), [w])
        ws.SGD(lr=0.0).update(g, {"w": w}, {"w": slope})
        rows = ws.stack([ws.gradients(y[i], [w])[0] for i in range(4)])
        return {"loss": loss, "jacobian": rows, "hessian": product, "left": left}

    w, v = np.array([1.0, 2.0, 3.0, 4.0], "f"), X[0, :4]
    result = ws.build_session(step).step(v=v)
    np.testing.assert_allclose(result["jacobian"], np.diag(2 * w * v), rtol=1e-6)
    np.testing.assert_allclose(result["hessian"], 6 * w * v, rtol=1e-6)
    np.testing.assert_allclose(result["left"], 2 * w * v * v, rtol=1e-6)
