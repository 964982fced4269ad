"""Optimizers count their own updates: what was trained before, by whom, and how often others step, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.optim.table import EVERYWHERE, Torch, Transcript, lamb
from wholestep.optim import EMA, Lookahead, Optimizer, averaged
from wholestep.train.checkpoint import capture

Array = np.ndarray[Any, Any]
SHAPES = {"w": (2, 3), "b": (3,)}

DAMPENED = {"lr": 0.1, "momentum": 0.9, "dampening": 0.4}

# Optimizers and schedules that read the number of the update.  The names are names of parameters.
COUNTING: dict[str, tuple[Optimizer, Any, dict[str, Any]]] = {
    "sgd": (ws.SGD(**DAMPENED), torch.optim.SGD, DAMPENED),
    "adam": (ws.Adam(lr=0.1), torch.optim.Adam, {"lr": 0.1}),
    "adamw": (ws.AdamW(lr=0.1, **EVERYWHERE), torch.optim.AdamW, {"lr": 0.1}),
    "amsgrad": (ws.AMSGrad(lr=0.1), torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
    "nadam": (ws.NAdam(lr=0.1), torch.optim.NAdam, {"lr": 0.1}),
    "radam": (ws.RAdam(lr=0.1), torch.optim.RAdam, {"lr": 0.1}),
    "adagrad": (ws.Adagrad(lr=0.1, lr_decay=0.3), torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.3}),
    "adafactor": (ws.Adafactor(lr=0.1), torch.optim.Adafactor, {"lr": 0.1}),
    "lamb": (ws.LAMB(lr=0.1, weight_decay=0.1, **EVERYWHERE), lamb, {}),
}  # fmt: skip


def plane(names: list[str]) -> ws.Graph:
    """Parameters `<name>.w` and `<name>.b` whose gradients are inputs, in float64."""
    g = ws.Graph()
    terms = []
    for name in names:
        for key, shape in SHAPES.items():
            start = np.random.default_rng(len(name)).normal(size=shape)
            p = g.parameter(f"{name}.{key}", shape, init=start, dtype="float64")
            terms.append((p * g.input(f"{name}.{key}.grad", shape, "float64")).sum())
    g.set_outputs([sum(terms[1:], start=terms[0])])
    return g


def slopes(names: Any, step: int) -> dict[str, Array]:
    rng = np.random.default_rng(step)
    return {f"{n}.{key}.grad": rng.normal(size=shape) for n in names for key, shape in SHAPES.items()}


def own(values: Mapping[str, Array], name: str) -> dict[str, Array]:
    """Those of one optimizer, by the last part of the parameter's name."""
    return {key: values[f"{name}.{key}.grad"] for key in SHAPES}


def weights(session: ws.Session, name: str) -> dict[str, Array]:
    return {key: session.get(f"{name}.{key}") for key in SHAPES}


def test_a_new_optimizer_begins_as_torchs_whatever_was_trained_before() -> None:
    names = list(COUNTING)
    graph = plane(names)
    before = ws.build_session(graph, optimizer=ws.SGD(lr=0.01))
    for step in range(5):
        before.step(slopes(names, step))
    groups = [ws.Group(f"{name}.*", name=name, optimizer=ours) for name, (ours, _, _) in COUNTING.items()]
    session = ws.build_session(graph, optimizer=ws.SGD(groups=groups))
    theirs = {name: _theirs(session, name) for name in names}
    for step in range(5, 12):
        given = slopes(names, step)
        session.step(given)
        for name, other in theirs.items():
            other.step(own(given, name))
    for name, other in theirs.items():
        for key in SHAPES:
            np.testing.assert_allclose(session.get(f"{name}.{key}"), other.get(key), rtol=1e-9, err_msg=f"{name}.{key}")


def _theirs(session: ws.Session, name: str) -> Torch | Transcript:
    ours, kind, options = COUNTING[name]
    start = weights(session, name)
    if kind is not lamb:
        return Torch(kind, options, start)
    numbers = {n.removeprefix("optimizer."): value for n, value in ours.runtime_values().items()}
    return Transcript(kind, numbers, start)


def test_the_first_step_of_adam_is_lr_after_5000_steps_of_sgd() -> None:
    graph = plane(["p"])
    before = ws.build_session(graph, optimizer=ws.SGD(lr=0.0))
    for _ in range(5000):
        before.step(slopes(["p"], 0))
    session = ws.build_session(graph, optimizer=ws.Adam(lr=0.01))
    start, given = session.get("p.w"), slopes(["p"], 1)
    session.step(given)
    np.testing.assert_allclose(start - session.get("p.w"), 0.01 * np.sign(given["p.w.grad"]), rtol=1e-6)


def test_wrappers_count_their_own_updates() -> None:
    names = ["ema", "ahead"]
    graph = plane(names)
    before = ws.build_session(graph, optimizer=ws.SGD(lr=0.01))
    for step in range(4):
        before.step(slopes(names, step))
    groups = [
        ws.Group("ema.*", name="averaging", optimizer=EMA(ws.SGD(lr=0.1), decay=0.9)),
        ws.Group("ahead.*", name="ahead", optimizer=Lookahead(ws.SGD(lr=0.1), k=3, alpha=0.5)),
    ]
    session = ws.build_session(graph, optimizer=ws.SGD(groups=groups))
    mean, fast, slow = None, weights(session, "ahead")["w"], weights(session, "ahead")["w"]
    for step in range(1, 8):
        given = slopes(names, 10 + step)
        session.step(given)
        w = session.get("ema.w.raw")
        mean = w if mean is None else 0.9 * mean + 0.1 * w
        fast = fast - 0.1 * given["ahead.w.grad"]
        if step % 3 == 0:
            fast = slow = slow + 0.5 * (fast - slow)
    assert mean is not None
    np.testing.assert_allclose(averaged(session)["ema.w"], mean, rtol=1e-12)
    np.testing.assert_allclose(session.get("ahead.w"), fast, rtol=1e-12)


# -- parameters with counts of their own ---------------------------------------------------------------------------


def frozen(*names: str) -> ws.Adam:
    return ws.Adam(lr=0.1, groups=[ws.Group(f"{name}.*", frozen=True) for name in names])


def torch_adam(start: Mapping[str, Mapping[str, Array]]) -> tuple[dict[str, Any], torch.optim.Optimizer]:
    params = {
        f"{name}.{key}": torch.nn.Parameter(torch.tensor(a))
        for name, arrays in start.items()
        for key, a in arrays.items()
    }
    return params, torch.optim.Adam(params.values(), lr=0.1)


def torch_step(
    params: Mapping[str, Any], optimizer: torch.optim.Optimizer, given: Mapping[str, Array], names: Any
) -> None:
    for path, p in params.items():
        p.grad = torch.tensor(given[f"{path}.grad"]) if path.split(".")[0] in names else None
    optimizer.step()


def assert_like(session: ws.Session, params: Mapping[str, Any]) -> None:
    for path, p in params.items():
        np.testing.assert_allclose(session.get(path), p.detach().numpy(), rtol=1e-10, err_msg=path)


def test_an_unfrozen_layer_begins_while_the_others_go_on() -> None:
    names = ["body", "head"]
    graph = plane(names)
    first = ws.build_session(graph, optimizer=frozen("body"))
    params, adam = torch_adam({n: weights(first, n) for n in names})
    for step in range(6):
        first.step(slopes(names, step))
        torch_step(params, adam, slopes(names, step), ["head"])
    second = ws.build_session(graph, optimizer=ws.Adam(lr=0.1))
    for step in range(6, 10):
        second.step(slopes(names, step))
        torch_step(params, adam, slopes(names, step), names)
    assert_like(second, params)
    # From here on in a separate model: the same bits, although it was built when all counts were 0.
    saved, other = second.state_dict(), ws.build_session(plane(names), optimizer=ws.Adam(lr=0.1))
    assert (saved["session/updates/head.w.adam"], saved["session/updates/body.w.adam"]) == (10, 4)
    capture(second).restore(other, exact=True)
    for step in range(10, 13):
        for session in (second, other):
            session.step(slopes(names, step))
        torch_step(params, adam, slopes(names, step), names)
    assert_like(second, params)
    for path in params:
        np.testing.assert_array_equal(other.get(path), second.get(path))


def test_two_optimizers_over_one_state_have_a_clock_each() -> None:
    """A GAN's: five updates of the one for each of the other."""
    names = ["critic", "maker"]
    graph = plane(names)
    sessions = {n: ws.build_session(graph, optimizer=frozen(*(set(names) - {n}))) for n in names}
    theirs = {n: torch_adam({n: weights(sessions[n], n)}) for n in names}
    for step in range(24):
        name = "maker" if step % 6 == 5 else "critic"
        sessions[name].step(slopes(names, step))
        torch_step(*theirs[name], slopes(names, step), [name])
    for name, (params, _) in theirs.items():
        assert_like(sessions[name], params)
    assert sessions["maker"].state_dict()["session/updates"] == 4
    assert sessions["critic"].state_dict()["session/updates"] == 20


def test_two_steps_over_the_same_modules_have_a_clock_each() -> None:
    """A GAN of modules: five steps of the critic for each of the maker."""
    critic, maker = ws.nn.Linear(2, 1, dtype="float64"), ws.nn.Linear(3, 2, dtype="float64")
    spec = {"z": ws.Spec((4, 3), "float64")}

    @ws.step(inputs=spec)
    def criticise(g: ws.Graph, z: ws.Tensor) -> ws.Tensor:
        loss = (critic(ws.stop_gradient(maker(z))) ** 2.0).mean()
        ws.Adam(lr=0.1).update(g, critic.traced(g), ws.gradients(loss, critic.traced(g)))
        return loss

    @ws.step(inputs=spec)
    def make(g: ws.Graph, z: ws.Tensor) -> ws.Tensor:
        loss = critic(maker(z)).mean()
        ws.Adam(lr=0.1).update(g, maker.traced(g), ws.gradients(loss, maker.traced(g)))
        return loss

    nets = {"critic": torch.nn.Linear(2, 1).double(), "maker": torch.nn.Linear(3, 2).double()}
    for ours, theirs in zip((critic, maker), nets.values(), strict=True):
        theirs.load_state_dict({n: torch.tensor(a) for n, a in ours.state_dict().items()})
    adams = {n: torch.optim.Adam(net.parameters(), lr=0.1) for n, net in nets.items()}
    sessions = {"critic": ws.build_session(criticise), "maker": ws.build_session(make)}
    for step in range(12):
        name, z = "maker" if step % 6 == 5 else "critic", np.random.default_rng(step).normal(size=(4, 3))
        sessions[name].step(z=z)
        adams[name].zero_grad()
        made = nets["maker"](torch.tensor(z))
        loss = nets["critic"](made).mean() if name == "maker" else (nets["critic"](made.detach()) ** 2).mean()
        loss.backward()
        adams[name].step()
    for ours, theirs in zip((critic, maker), nets.values(), strict=True):
        for name, value in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[name], value.numpy(), rtol=1e-8, err_msg=name)


def test_a_session_follows_when_another_has_trained_some_of_its_parameters() -> None:
    names = ["body", "head"]
    graph = plane(names)
    whole, part = ws.build_session(graph, optimizer=ws.Adam(lr=0.1)), None
    params, adam = torch_adam({n: weights(whole, n) for n in names})
    for step in range(9):
        if step == 3:
            part = ws.build_session(graph, optimizer=frozen("body"))
        chosen = ["head"] if 3 <= step < 6 else names
        (part if part is not None and step < 6 else whole).step(slopes(names, step))
        torch_step(params, adam, slopes(names, step), chosen)
    assert_like(whole, params)


# -- one session -----------------------------------------------------------------------------------------------------


def line() -> ws.Graph:
    g = ws.Graph()
    x, y = g.input("x", ("batch", 3), "float64"), g.input("y", ("batch",), "float64")
    w = g.parameter("w", (3,), init=np.array([0.3, -0.2, 0.5]), dtype="float64")
    g.set_outputs([ws.losses.mse_loss((x * w).sum(axis=1), y)])
    return g


def rows(step: int, count: int = 4) -> dict[str, Array]:
    rng = np.random.default_rng(step)
    return {"x": rng.normal(size=(count, 3)), "y": rng.normal(size=count)}


class Line:
    """torch's `line`."""

    def __init__(self, w: Array) -> None:
        self.w = torch.nn.Parameter(torch.tensor(w))

    def step(self, optimizer: torch.optim.Optimizer, given: Mapping[str, Array]) -> None:
        optimizer.zero_grad()
        x, y = torch.tensor(given["x"]), torch.tensor(given["y"])
        (((x * self.w).sum(1) - y) ** 2).mean().backward()
        optimizer.step()


def test_set_optimizer_begins_anew_and_again_when_it_comes_back() -> None:
    session = ws.build_session(line(), optimizer=ws.SGD(lr=0.1), batch_size=4)
    theirs = Line(session.get("w"))
    kinds = [(ws.SGD(lr=0.1), torch.optim.SGD), (ws.Adam(lr=0.1), torch.optim.Adam)] * 2
    for i, (ours, kind) in enumerate(kinds):
        session.set_optimizer(ours)
        optimizer = kind([theirs.w], lr=0.1)
        for step in range(3):
            session.step(rows(10 * i + step))
            theirs.step(optimizer, rows(10 * i + step))
    np.testing.assert_allclose(session.get("w"), theirs.w.detach().numpy(), rtol=1e-12)
    assert session.state.step == 12  # what is drawn at random goes on


def test_skipped_steps_do_not_count() -> None:
    session = ws.build_session(line(), optimizer=ws.Adam(lr=0.1), batch_size=4, nonfinite="skip")
    theirs = Line(session.get("w"))
    adam = torch.optim.Adam([theirs.w], lr=0.1)
    for step in range(6):
        given = rows(step)
        if step in (0, 3):  # torch's GradScaler does not call optimizer.step either
            session.step({**given, "y": given["y"] * np.inf})
            continue
        session.step(given)
        theirs.step(adam, given)
    np.testing.assert_allclose(session.get("w"), theirs.w.detach().numpy(), rtol=1e-12)
    assert session.state_dict()["session/updates/w.adam"] == 4


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_native_loop_and_windows_count_alike(accumulate: int) -> None:
    graph = line()
    before = ws.build_session(graph, optimizer=ws.SGD(lr=0.01), batch_size=4)
    before.run(rows(0, 20))
    session = ws.build_session(graph, optimizer=ws.Adam(lr=0.1), batch_size=4, accumulate=accumulate)
    theirs = Line(session.get("w"))
    adam = torch.optim.Adam([theirs.w], lr=0.1)
    data, size = rows(1, 48), 4 * accumulate
    session.run(data, shuffle=False)
    session.step(rows(2, size))
    for start in range(0, 48, size):
        theirs.step(adam, {n: a[start : start + size] for n, a in data.items()})
    theirs.step(adam, rows(2, size))
    np.testing.assert_allclose(session.get("w"), theirs.w.detach().numpy(), rtol=1e-10)


def test_a_step_by_hand_counts_too() -> None:
    session = ws.build_session(_predicting(), optimizer=ws.Adam(lr=0.1), batch_size=4)
    theirs = Line(session.get("w"))
    adam = torch.optim.Adam([theirs.w], lr=0.1)
    for step in range(4):
        given = rows(step)
        if step % 2:
            session.step(given)
        else:
            out = session.forward(given)
            session.backward(2.0 * (out - given["y"]) / out.size)
            session.apply_gradients(0.1)
        theirs.step(adam, given)
    np.testing.assert_allclose(session.get("w"), theirs.w.detach().numpy(), rtol=1e-10)


def _predicting() -> ws.Graph:
    g = ws.Graph()
    x, y = g.input("x", ("batch", 3), "float64"), g.input("y", ("batch",), "float64")
    out = (x * g.parameter("w", (3,), init=np.array([0.3, -0.2, 0.5]), dtype="float64")).sum(axis=1)
    g.set_outputs([ws.losses.mse_loss(out, y), out])
    return g


def test_a_state_dict_without_counts_has_those_of_its_step() -> None:
    """As versions before these counts have saved it."""
    session = ws.build_session(line(), optimizer=ws.Adam(lr=0.1), batch_size=4)
    for step in range(3):
        session.step(rows(step))
    old = {n: a for n, a in session.state_dict().items() if not n.startswith("session/updates")}
    other = ws.build_session(line(), optimizer=ws.Adam(lr=0.1), batch_size=4)
    other.load_state_dict(old)
    for s in (session, other):
        s.step(rows(3))
    np.testing.assert_array_equal(other.get("w"), session.get("w"))


def test_a_profile_leaves_the_counts_alone() -> None:
    session, plain = (ws.build_session(line(), optimizer=ws.Adam(lr=0.1), batch_size=4) for _ in range(2))
    session.step(rows(0))
    plain.step(rows(0))
    session.profile(rows(1), steps=2)
    for s in (session, plain):
        s.step(rows(2))
    np.testing.assert_array_equal(session.get("w"), plain.get("w"))


# -- fit -------------------------------------------------------------------------------------------------------------


def test_a_second_fit_begins_with_a_new_optimizer_and_a_new_schedule() -> None:
    """As torch code that makes both anew; `session.run` and `Trainer.train` go on (test_checkpoint.py)."""
    model = ws.nn.Linear(3, 1, dtype="float64")
    given = rows(0, 24)
    data = given["x"], given["y"][:, None]
    theirs = torch.nn.Linear(3, 1, dtype=torch.float64)
    theirs.load_state_dict({n: torch.tensor(a) for n, a in model.state_dict().items()})
    for _ in range(2):
        schedule = ws.schedules.Cosine(0.1, 12)
        ws.fit(model, data, loss="mse", optimizer=ws.Adam(lr=0.1), schedule=schedule, epochs=2, batch_size=4,
               shuffle=False, progress=False)  # fmt: skip
        adam = torch.optim.Adam(theirs.parameters(), lr=0.1)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 12)
        for start in [*range(0, 24, 4)] * 2:
            x, y = (torch.tensor(a[start : start + 4]) for a in data)
            adam.zero_grad()
            torch.nn.functional.mse_loss(theirs(x), y).backward()
            adam.step()
            falling.step()
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[name], value.numpy(), rtol=1e-9, err_msg=name)
