"""A loss that is not finite is blamed on the operation, the layer and the line that computed it, through `fit`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import emulated_device
from wholestep.callbacks.run import Position
from wholestep.errors import NonFiniteError
from wholestep.train.nonfinite import LossWatch

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)).astype(np.float32)
Y = RNG.normal(size=(24, 2)).astype(np.float32)
Model = Callable[[], ws.nn.Module]


class Between(ws.nn.Module):
    """A function between two layers; neither of them is to blame."""

    def __init__(self, function: Callable[[ws.Tensor], ws.Tensor]) -> None:
        self.a, self.b, self.function = ws.nn.Linear(3, 4), ws.nn.Linear(4, 2), function

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.b(self.function(self.a(x)))


class Inner(ws.nn.Module):
    """A layer of one's own, two levels down."""

    def __init__(self) -> None:
        self.scale = ws.nn.Parameter((4,), 1.0)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return ws.log(x * self.scale)  # line of Inner


class Nested(ws.nn.Module):
    def __init__(self) -> None:
        self.first, self.block = ws.nn.Linear(3, 4), ws.nn.Sequential(ws.nn.ReLU(), Inner())
        self.last = ws.nn.Linear(4, 2)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.last(self.block(self.first(x) - 9.0))


def of_logarithm(h: ws.Tensor) -> ws.Tensor:
    return ws.log(h)  # negative


def of_quotient(h: ws.Tensor) -> ws.Tensor:
    zero = h * 0.0
    return zero / zero  # 0/0


def of_overflow(h: ws.Tensor) -> ws.Tensor:
    return ws.exp(h * 500.0)  # beyond float32, not beyond float64


def of_root(h: ws.Tensor) -> ws.Tensor:
    return ws.sqrt(h * 0.0)  # its slope at 0


def of_masked(h: ws.Tensor) -> ws.Tensor:
    """The infinities of the mask are meant; the logarithm is to blame."""
    attended = ws.softmax(ws.where(h > -99.0, h, -float("inf")) * 2.0)
    attended = attended + ws.softmax(ws.where(h == h[:, :1], h, -float("inf")))
    return ws.log(attended * 0.0 - 1.0)  # behind a mask


def of_fully_masked(h: ws.Tensor) -> ws.Tensor:
    return ws.softmax(ws.where(h < 1e9, -float("inf"), h))  # nothing is left


def of_scan(h: ws.Tensor) -> ws.Tensor:
    def body(carry: ws.Tensor, x: ws.Tensor) -> tuple[ws.Tensor, ws.Tensor]:
        carry = carry - 1.0
        return carry, ws.log(carry) * 0.0 + x  # negative from its second step on

    _, ys = ws.scan(body, h[0] * 0.0 + 1.5, h.reshape(-1, 4))
    return ys


@dataclass(frozen=True)
class Case:
    model: Model
    says: str  # of the operation, its layer and value
    line: str  # what is written there
    options: dict[str, Any] = field(default_factory=dict)


def between(function: Callable[[ws.Tensor], ws.Tensor]) -> Model:
    return lambda: Between(function)


NAN = "computed the first value that is not finite, nan"
INF = r"exp in Between.forward computed the first value that is not finite, inf at index \[\d, \d\]"
FORWARD = {
    "log": Case(between(of_logarithm), f"is nan: log in Between.forward {NAN}", "return ws.log(h)  # negative"),
    "0/0": Case(between(of_quotient), f"is nan: div in Between.forward {NAN}", "return zero / zero  # 0/0"),
    "exp": Case(
        between(of_overflow), INF,
        "return ws.exp(h * 500.0)  # beyond float32, not beyond float64",
    ),
    "mask": Case(
        between(of_masked), f"log in Between.forward {NAN}", "return ws.log(attended * 0.0 - 1.0)  # behind a mask"
    ),
    "all masked": Case(
        between(of_fully_masked), f"softmax in Between.forward {NAN}",
        'return ws.softmax(ws.where(h < 1e9, -float("inf"), h))  # nothing is left',
    ),
    "nested": Case(
        Nested, r"log in layer 'block\.1' computed the first value that is not finite, -inf",
        "return ws.log(x * self.scale)  # line of Inner",
    ),
    "scan": Case(
        between(of_scan), f"log in Between.forward {NAN}",
        "return carry, ws.log(carry) * 0.0 + x  # negative from its second step on",
    ),
}  # fmt: skip
BACKWARD = {
    "sqrt": Case(
        between(of_root), r"step 0 of epoch 0, had gradients that are not finite, first \(from the loss\) that of "
        r"'a\.\w+': the gradient of sqrt in Between.forward computed the first value that is not finite, -?inf",
        "return ws.sqrt(h * 0.0)  # its slope at 0",
    ),
}  # fmt: skip


def fails(case: Case, **options: Any) -> str:
    given = {"loss": "mse", "batch_size": 8, "progress": False, "shuffle": False, "optimizer": ws.SGD(lr=1e-3)}
    with pytest.raises(NonFiniteError) as caught:
        ws.fit(case.model(), (X, Y), **{**given, **options})
    return str(caught.value)


def blamed(case: Case, text: str) -> None:
    assert re.search(case.says, text), text
    assert text.endswith(f": {case.line}"), text
    assert re.search(r"\n  at \S+test_nonfinite_origin\.py:\d+: ", text), text


WAYS = {
    "cpu": {},
    "reference": {"device": "reference"},
    "accumulated": {"batch_size": 4, "accumulate": 2},
    "bfloat16": {"precision": "bfloat16"},
}


# A loop over the rows of a batch is not cut into micro-batches.
TABLE = [(name, way) for name in FORWARD for way in WAYS if (name, way) != ("scan", "accumulated")]


@pytest.mark.parametrize(("name", "way"), TABLE)
def test_the_forward_pass(name: str, way: str) -> None:
    blamed(FORWARD[name], fails(FORWARD[name], **WAYS[way]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BACKWARD)
def test_the_backward_pass(name: str, way: str) -> None:
    blamed(BACKWARD[name], fails(BACKWARD[name], **WAYS[way]))


def test_a_cast_that_overflows_a_half_type() -> None:
    """65504 is the largest number of float16: the cast of a factor is to blame."""

    def large(h: ws.Tensor) -> ws.Tensor:
        return h * 1e6  # too much

    text = fails(Case(between(large), "", ""), precision="float16")
    assert re.search(
        r"cast in \S+ .*computed the first value that is not finite, -?inf|cast in layer 'b' computed", text
    )


def test_a_row_of_the_data_is_named() -> None:
    x = X.copy()
    x[13, 1] = np.inf
    stream = [(x[i : i + 8], Y[i : i + 8]) for i in range(0, 24, 8)]
    with pytest.raises(
        NonFiniteError, match=r"step 1 of epoch 0 .*the input 'x' has values .* first in row 5 of the batch"
    ):
        ws.fit(Between(lambda h: h), stream, loss="mse", progress=False)


def test_a_step_of_ones_own() -> None:
    model = Between(of_logarithm)

    @ws.step(inputs={"x": ws.Spec(("batch", 3)), "y": ws.Spec(("batch", 2))})
    def own(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> Any:
        loss = ws.losses.mse_loss(model(x), y)
        ws.SGD(lr=1e-3).update(g, model.traced(g), ws.gradients(loss, model))
        return loss

    with pytest.raises(NonFiniteError, match=rf"log in \S* ?{NAN}"):
        ws.fit(own, (X, Y), batch_size=8, progress=False, shuffle=False)


def test_dropout_draws_what_the_step_drew() -> None:
    """The quotient is 0/0 in some elements alone: where the step has dropped them."""

    class Dropped(ws.nn.Module):
        def __init__(self) -> None:
            self.a, self.b, self.drop = ws.nn.Linear(3, 4), ws.nn.Linear(4, 2), ws.nn.Dropout(0.5)

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            h = self.drop(self.a(x))
            return self.b(h / h)  # dropped

    text = fails(Case(Dropped, "", ""))
    assert re.search(rf"div in Dropped.forward {NAN}", text)
    assert text.endswith(": return self.b(h / h)  # dropped")


def test_a_step_that_numpy_has_no_room_for_is_told_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholestep.session.inspect.nonfinite.free_bytes", lambda: 100)
    text = fails(FORWARD["log"])
    assert "the first output that is not finite is that of 'b'; inputs and parameters are" in text
    specs = {"inputs": ws.Spec(("batch", 3)), "targets": ws.Spec(("batch", 2))}
    session = ws.build_session(Between(of_logarithm), loss="mse", batch_size=8, **specs)
    with pytest.raises(
        ws.errors.OutOfMemoryError, match=r"NumPy needs [\d,]+ bytes .*, and 100 are free\. Ask about fewer"
    ):
        session.first_nonfinite(x=X[:8], labels=Y[:8])


def test_asking_a_session_directly() -> None:
    specs = {"inputs": ws.Spec(("batch", 3)), "targets": ws.Spec(("batch", 2))}
    session = ws.build_session(Between(of_logarithm), loss="mse", batch_size=8, **specs)
    before = session.state_dict()
    found = session.first_nonfinite(x=X[:8], labels=Y[:8])
    assert found is not None
    assert (found.op, found.layer, found.is_leaf) == ("log", "(Between)", False)
    assert all(np.array_equal(a, before[n]) for n, a in session.state_dict().items()), "nothing has changed"
    healthy = ws.build_session(Between(lambda h: h), loss="mse", batch_size=8, **specs)
    assert healthy.first_nonfinite(x=X[:8], labels=Y[:8]) is None
    raising = ws.build_session(Between(of_logarithm), loss="mse", batch_size=8, nonfinite="raise", **specs)
    with pytest.raises(
        NonFiniteError, match=r"session\.first_nonfinite\(\.\.\.\) of the same inputs names the operation"
    ):
        raising.step(x=X[:8], labels=Y[:8])


# -- the rows that cause it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("negative", "shuffle", "named"),
    [
        ([37], True, "caused by row 37 of the training data"),
        ([37, 40], False, "caused by rows 37, 40 of the training data"),
        ([32, 33, 35, 36, 39], False, "caused by rows 32, 33, 35 and others of the training data"),
        (range(100), True, "it concerns every row"),
    ],
)
def test_the_rows_are_named(negative: Any, shuffle: bool, named: str) -> None:
    x = RNG.random((100, 3)).astype(np.float32) + 0.5
    x[list(negative), 1] *= -1
    model = ws.nn.Sequential(ws.nn.Lambda(ws.log), ws.nn.Linear(3, 2))
    y = np.zeros((100, 2), np.float32)
    with pytest.raises(NonFiniteError, match=re.escape(named)):
        ws.fit(model, (x, y), loss="mse", batch_size=16, shuffle=shuffle, seed=0, progress=False, device="reference")


def test_the_state_before_the_step_is_saved_and_repeats_it(tmp_path: Path) -> None:
    """A run with checkpoints ends with one of the step before the failure; resumed, it fails at the same step."""
    x = RNG.random((100, 3)).astype(np.float32) + 0.5
    x[83, 1] = -1.0
    y = np.zeros((100, 2), np.float32)

    def train(**settings: Any) -> str:
        model = ws.nn.Sequential(ws.nn.Lambda(ws.log), ws.nn.Linear(3, 2))
        with pytest.raises(NonFiniteError) as caught:
            ws.fit(model, (x, y), loss="mse", batch_size=16, shuffle=False, progress=False, device="reference",
                   checkpoint=tmp_path, **settings)  # fmt: skip
        return str(caught.value)

    text = train()
    assert "the loss of step 5 of epoch 0" in text
    assert re.search(r"nan at index \[3, 1\] \(1 of 48 elements\), from finite operands \(-1 to 1\.\d+\)", text)
    assert "caused by row 83 of the training data" in text
    assert "saved as the last checkpoint: resume=True repeats the step" in text
    stored = ws.load_checkpoint(tmp_path)
    assert (stored.position.epoch, stored.position.step) == (0, 5)
    assert "the loss of step 5 of epoch 0" in train(resume=True)


# -- planted in a row, in a weight, forwards and backwards, on every device ----------------------------------------


class Divided(ws.nn.Module):
    """The quotient 0/0 of row 37 is not chosen, so that the loss is finite; its gradient is 0 · NaN."""

    def __init__(self) -> None:
        self.a = ws.nn.Linear(3, 2)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        first = x[:, :1]
        return ws.where(first > 0, first / (self.a(x) * first), 0.0)  # divided


class Words(ws.nn.Module):
    """A table whose third row is read by every fourth row of the data."""

    def __init__(self) -> None:
        self.table, self.b = ws.nn.Embedding(4, 4), ws.nn.Linear(4, 2)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.b(self.table(x))


def planted(model: ws.nn.Module, x: Any, device: str) -> str:
    """The error of a run over 48 rows, of which row 37 is in the third batch of 16."""
    settings: dict[str, Any] = {"loss": "mse", "batch_size": 16, "shuffle": False, "progress": False}
    with emulated_device(), pytest.raises(NonFiniteError) as caught:
        ws.fit(model, (x, np.zeros((48, 2), np.float32)), optimizer=ws.SGD(lr=1e-3), device=device, **settings)
    return str(caught.value)


DEVICES = ("reference", "cpu", "emulated")


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_fails_forwards_is_named(device: str) -> None:
    x = RNG.random((48, 3)).astype(np.float32) + 0.5
    x[37, 1] = -1.0
    text = planted(ws.nn.Sequential(ws.nn.Lambda(of_logarithm), ws.nn.Linear(3, 2)), x, device)
    assert "the loss of step 2 of epoch 0" in text
    assert "caused by row 37 of the training data" in text
    assert text.endswith(": return ws.log(h)  # negative")


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_fails_backwards_is_named(device: str) -> None:
    x = RNG.random((48, 3)).astype(np.float32) + 0.5
    x[37, 0] = 0.0
    text = planted(Divided(), x, device)
    assert re.search(r"the update before it, step 2 of epoch 0, had gradients .*: div in Divided.forward", text), text
    assert "caused by row 37 of the training data" in text
    assert text.endswith(": return ws.where(first > 0, first / (self.a(x) * first), 0.0)  # divided")


@pytest.mark.parametrize("device", DEVICES)
def test_a_weight_is_named_with_the_rows_that_read_it(device: str) -> None:
    model = Between(lambda h: h)
    model.load_state_dict({"a.weight": np.full((4, 3), np.inf, np.float32)}, strict=False)
    text = planted(model, RNG.random((48, 3)).astype(np.float32), device)
    assert "before this step the parameter 'a.weight' is inf at index [0, 0] (12 of 12 elements)" in text
    assert "which matmul in layer 'a' reads; it concerns every row." in text
    assert text.endswith(": return self.b(self.function(self.a(x)))")
    words, table = Words(), np.zeros((4, 4), np.float32)
    table[2, 1] = np.nan
    words.load_state_dict({"table.weight": table}, strict=False)
    text = planted(words, np.arange(48, dtype=np.int32) % 4, device)
    assert (
        "the parameter 'table.weight' is nan at index [2, 1] (1 of 16 elements), which gather in layer 'table'" in text
    )
    assert "caused by rows 2, 6, 10 and others of the training data" in text


@pytest.mark.parametrize("device", DEVICES)
def test_a_value_of_the_data_is_named_by_its_row(device: str) -> None:
    x = X.repeat(2, axis=0)
    x[37, 1] = np.nan
    with emulated_device(), pytest.raises(ws.errors.InputError, match=r"'x' holds nan at \[37, 1\]"):
        ws.fit(Between(lambda h: h), (x, Y.repeat(2, axis=0)), loss="mse", device=device, progress=False)
    stream = [(x[i : i + 8], Y[:8]) for i in range(0, 48, 8)]
    with emulated_device(), pytest.raises(NonFiniteError, match=r"step 4 of epoch 0 .*'x' .* first in row 5 of the"):
        ws.fit(Between(lambda h: h), stream, loss="mse", device=device, progress=False)


def test_a_healthy_step_has_no_additional_kernels() -> None:
    """The plan of a run that watches its losses is that of one that does not."""
    plans = []
    for policy in ("raise", "ignore"):
        run = ws.Experiment(model=Between(lambda h: h), data=(X, Y), loss="mse", batch_size=8, nonfinite=policy)
        trainer, _ = run.trainer()
        plans.append(trainer.session.plan)
    watched, free = plans
    assert watched == free
    assert (len(watched.kernels), watched.flops, watched.bytes_moved) == (
        len(free.kernels),
        free.flops,
        free.bytes_moved,
    )


def test_copies_of_the_state_take_a_fixed_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every copy takes 0.3 s, and every step 0.05 s."""
    clock, spent = [0.0], [0.0]
    monkeypatch.setattr("wholestep.train.nonfinite.time.monotonic", lambda: clock[0])
    trainer, loader = ws.Experiment(model=Between(lambda h: h), data=(X, Y), loss="mse", device="reference").trainer()
    state_dict = trainer.session.state_dict

    def copy(*args: Any, **options: Any) -> Any:
        clock[0], spent[0] = clock[0] + 0.3, spent[0] + 0.3
        return state_dict(*args, **options)

    monkeypatch.setattr(trainer.session, "state_dict", copy)
    watch = LossWatch(trainer, loader, "raise")
    for step in range(20_000):
        clock[0] += 0.05
        watch.keep(Position(0, step))
    assert 1 < spent[0] / 0.3 < 20
    assert spent[0] < 0.006 * clock[0]


@pytest.mark.parametrize("name", ["log", "sqrt"])
def test_on_an_emulated_gpu(name: str) -> None:
    case = {**FORWARD, **BACKWARD}[name]
    with emulated_device():
        blamed(case, fails(case, device="emulated"))
