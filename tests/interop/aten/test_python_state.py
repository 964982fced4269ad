"""Modules whose forward changes Python values, draws with `random` or NumPy, or reads a clock: refused or warned of at
the line that does it, and caches are left in peace."""

from __future__ import annotations

import inspect
import itertools
import random
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wholestep as ws
from wholestep.errors import TrainingWarning, UsageError

CALLS = 0
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    calls_of_class = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.step, self.ready, self.hidden = 0, False, None
        self.counts, self.calls, self.numbers = {"n": 0}, [], itertools.count(1)
        self.generator, self.elapsed, self.memory = np.random.default_rng(0), 0.0, torch.zeros(3)
        self.settings = type("Settings", (), {})()
        self.settings.step = 0
        self.register_buffer("scale", torch.ones(3))


class Attribute(Base):
    def forward(self, x: Any) -> Any:
        self.step += 1  # HERE
        return self.layer(x) * max(0.1, 1 / self.step)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Attribute())

    def forward(self, x: Any) -> Any:
        return self.body(x)


class Dict(Base):
    def forward(self, x: Any) -> Any:
        self.counts["n"] += 1  # HERE
        return self.layer(x) * self.counts["n"]


class List(Base):
    def forward(self, x: Any) -> Any:
        self.calls.append(1)  # HERE
        return self.layer(x) * len(self.calls)


class Object(Base):
    def forward(self, x: Any) -> Any:
        self.settings.step += 1  # HERE
        return self.layer(x) * self.settings.step


class Counter(Base):
    def forward(self, x: Any) -> Any:
        return self.layer(x) * next(self.numbers)  # HERE


class Global(Base):
    def forward(self, x: Any) -> Any:
        global CALLS
        CALLS += 1  # HERE
        return self.layer(x) * CALLS


class OfClass(Base):
    def forward(self, x: Any) -> Any:
        Base.calls_of_class += 1  # HERE
        return self.layer(x) * Base.calls_of_class


class FromNone(Base):
    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        self.hidden = y if self.hidden is None else self.hidden.detach() * 0.5 + y  # HERE
        return self.hidden


class PlainTensor(Base):
    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        self.memory = self.memory.detach() * 0.5 + y.mean(0)  # HERE
        return y + self.memory


class Python(Base):
    def forward(self, x: Any) -> Any:
        return self.layer(x) if random.random() < 0.5 else -self.layer(x)  # HERE


class NumPy(Base):
    def forward(self, x: Any) -> Any:
        return self.layer(x) * float(np.random.beta(0.2, 0.2))  # HERE


class OwnGenerator(Base):
    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.generator.random()  # HERE


class FreshGenerator(Base):
    def forward(self, x: Any) -> Any:
        return self.layer(x) * np.random.default_rng().random()  # HERE


class Clock(Base):
    def forward(self, x: Any) -> Any:
        return self.layer(x) * (time.perf_counter() % 1.0)  # HERE


class FirstCall(Base):
    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if not self.ready:
            self.ready = True  # HERE
            with torch.no_grad():
                self.scale.copy_(y.std(0))
        return y / self.scale


def marked_line(kind: type) -> int:
    lines, first = inspect.getsourcelines(kind)
    return first + next(i for i, line in enumerate(lines) if "# HERE" in line)


REFUSED = {
    Attribute: r"self\.step .*register_buffer\('step'",
    Dict: r"self\.counts",
    List: r"self\.calls",
    Object: r"self\.settings",
    Counter: r"self\.numbers",
    Global: r"test_python_state\.CALLS .*Pass it to forward",
    OfClass: r"Base\.calls_of_class",
    FromNone: r"self\.hidden",
    PlainTensor: r"self\.memory",
    Python: r"the generator of random .*torch\.where\(torch\.rand",
    NumPy: r"the generator of np\.random",
    OwnGenerator: r"self\.generator",
    FreshGenerator: r"np\.random\.default_rng\(\)",
    Clock: r"time\.perf_counter\(\) .*Pass the number to forward",
    FirstCall: r"self\.ready .*call the module once on data of yours, then import it",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_module_whose_second_call_computes_something_else_is_refused_at_its_line(kind: Any) -> None:
    python, numpy = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    module = kind()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    line = marked_line(kind)
    with pytest.raises(UsageError, match=rf"gives other outputs when it is called again.*{REFUSED[kind]}") as caught:
        ws.from_torch(module, X)
    assert str(caught.value).partition("\n  at ")[2].startswith(f"{__file__}:{line}: ")
    # Nothing of the trial is left: neither in the module, nor in its buffers, nor in the generators.
    assert (module.step, module.ready, module.hidden, module.counts, module.calls) == (0, False, None, {"n": 0}, [])
    assert (CALLS, Base.calls_of_class, module.settings.step) == (0, 0, 0)
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy  # type: ignore[index]
    for name, value in before.items():
        np.testing.assert_array_equal(module.state_dict()[name].numpy(), value.numpy(), err_msg=name)


def test_a_part_inside_is_named_by_its_path() -> None:
    with pytest.raises(UsageError, match=r"Inner in train mode .* self\.step of the module 'body\.0'"):
        ws.from_torch(Inner(), X)


class Later(Base):
    def forward(self, x: Any) -> Any:
        self.step += 1  # HERE
        return self.layer(x) * (2.0 if self.step > 1000 else 1.0)


class Seldom(Base):
    def forward(self, x: Any) -> Any:
        if random.random() < 1e-9:  # HERE
            return -self.layer(x)
        return self.layer(x)


@pytest.mark.parametrize(("kind", "told"), [(Later, r"self\.step"), (Seldom, "the generator of random")])
def test_state_that_changes_nothing_yet_is_a_warning_with_its_line(kind: Any, told: str) -> None:
    with pytest.warns(TrainingWarning, match=rf"forward of {kind.__name__} changes Python values: {told}") as caught:
        net = ws.from_torch(kind(), X)
    assert len(caught) == 1  # once, though it is traced in training and in evaluation
    assert f"{__file__}:{marked_line(kind)}" in str(caught[0].message)
    assert net.predict(X.numpy()).shape == (4, 3)


class Buffered(Base):
    """The way out that the error names."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.count += 1
        return self.layer(x) * torch.clamp(1 / torch.clamp(self.count, min=1.0), min=0.1)


def test_what_the_error_says_to_write_trains_as_in_torch() -> None:
    torch.manual_seed(0)
    module = Buffered()
    net, y = ws.from_torch(module, X), torch.randn(4, 3)
    optimizer = torch.optim.SGD(module.train().parameters(), lr=0.1)
    theirs = []
    for _ in range(3):
        loss = ((module(X) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    history = ws.fit(net, (X.numpy(), y.numpy()), loss="mse", optimizer=ws.SGD(0.1), epochs=3, progress=False)
    np.testing.assert_allclose(history["loss"], theirs, rtol=1e-5)


class Cache(Base):
    def forward(self, x: Any) -> Any:
        if self.hidden is None:
            self.hidden, self.step = torch.full((3,), 2.0), x.shape[1]
        self.counts[str(x.shape[1])] = self.hidden
        return self.layer(x) * self.hidden


class Inspected(Base):
    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        self.hidden = y
        self.calls.append(y)
        return y


class Timed(Base):
    def forward(self, x: Any) -> Any:
        start = time.perf_counter()
        y = self.layer(x)
        _ = time.perf_counter() - start
        return y


class Toggled(Base):
    def forward(self, x: Any) -> Any:
        self.ready = True
        y = self.layer(x)
        self.ready = False
        return y


class Normed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Any) -> Any:
        return torch.dropout(self.norm(self.layer(x)), 0.5, self.training) + torch.randn(3)


@pytest.mark.parametrize("kind", [Cache, Inspected, Timed, Toggled, Normed])
def test_caches_records_and_torch_s_own_state_are_no_reason_to_say_anything(kind: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ws.from_torch(kind(), X)


def test_modules_without_state_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    from wholestep.interop.torch.aten import repeated_calls

    def called(*_: Any) -> None:
        raise AssertionError("called again")

    monkeypatch.setattr(repeated_calls, "_called_twice", called)
    ws.from_torch(Normed(), X)
