"""Several modules in a `@ws.step`, as people write them, against torch: numbers, names, norms, entry points."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import GraphError, ShapeError, UsageError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(1)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def taught(module: ws.nn.Module, twin: torch.nn.Module) -> None:
    """The module begins with the numbers of its twin."""
    module.load_state_dict(twin.state_dict())


def assert_equal(module: ws.nn.Module, twin: torch.nn.Module, rtol: float = 2e-4, atol: float = 2e-6) -> None:
    wanted = {name: a for name, a in twin.state_dict().items() if "num_batches" not in name}
    found = module.state_dict()
    assert found.keys() == wanted.keys()
    for name, a in wanted.items():
        np.testing.assert_allclose(found[name], a.detach().numpy(), rtol, atol, err_msg=name)


# -- a norm that is called several times -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "twin", "shape"),
    [
        pytest.param(ws.nn.BatchNorm1d, torch.nn.BatchNorm1d, (5, 3), id="1d, twice"),
        pytest.param(ws.nn.BatchNorm2d, torch.nn.BatchNorm2d, (2, 3, 2, 4), id="2d, three times"),
    ],
)
def test_a_norm_follows_every_batch_in_order(norm: Any, twin: Any, shape: tuple[int, ...]) -> None:  # N3
    times = len(shape) // 2 + len(shape) // 4
    ours, theirs = norm(3, momentum=0.3), twin(3, momentum=0.3)

    @ws.step(inputs={f"x{i}": ws.Spec(("batch", *shape[1:])) for i in range(times)})
    def siamese(g: ws.Graph, **x: ws.Tensor) -> ws.Tensor:
        loss = sum(((i + 1.0) * ours(a) ** 3 for i, a in enumerate(x.values())), start=0.0 * x["x0"]).mean()
        ws.SGD(lr=0.1).update(g, ours.traced(g), ws.gradients(loss, ours))
        return loss

    session, optimizer = ws.build_session(siamese, batch_size=shape[0]), torch.optim.SGD(theirs.parameters(), 0.1)
    for _ in range(3):
        given = {f"x{i}": normal(*shape) + i for i in range(times)}
        loss = sum((i + 1.0) * theirs(torch.tensor(a)) ** 3 for i, a in enumerate(given.values())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert session.step(given).loss == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
    assert_equal(ours, theirs)
    x = normal(*shape)
    theirs.eval()
    np.testing.assert_allclose(ours.predict(x), theirs(torch.tensor(x)).detach(), rtol=2e-4, atol=2e-5)


def test_a_state_that_a_user_updates_twice_is_still_refused() -> None:
    g = ws.Graph()
    count = g.state("count", ())
    g.update(count, count + 1.0)
    with pytest.raises(GraphError, match="'count' is updated twice in one step"):
        g.update(count, count + 2.0)
    g.advance(count, lambda now: 2.0 * now)
    g.set_outputs([g.updates["count"]])
    session = ws.build_inference_session(g)
    assert [float(a) for a in session.step().outputs.values()] == [2.0]


# -- two networks ------------------------------------------------------------------------------------------------

NOISE, WIDTH = 4, 16


def players(nn: Any) -> tuple[Any, Any]:
    """A generator and a judge.  No bias before a norm: its gradient is rounding, which Adam would make a step of."""
    first, last = nn.Linear(NOISE, WIDTH, bias=False), nn.Linear(WIDTH, 2, bias=False)
    netG = nn.Sequential(first, nn.BatchNorm1d(WIDTH), nn.ReLU(), last)
    first, last = nn.Linear(2, WIDTH, bias=False), nn.Linear(WIDTH, 1)
    return netG, nn.Sequential(first, nn.BatchNorm1d(WIDTH), nn.LeakyReLU(0.2), last)


BCE = ws.losses.binary_cross_entropy_with_logits_loss
SPECS = {"real": ws.Spec(("batch", 2)), "noise": ws.Spec(("batch", NOISE))}


def torch_bce(scores: torch.Tensor, aim: float) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, aim))


def test_a_gan_of_modules_in_one_step() -> None:  # S1, N1, N3, N4
    (netG, netD), (twinG, twinD) = players(ws.nn), players(torch.nn)
    taught(netG, twinG), taught(netD, twinD)

    @ws.step(inputs=SPECS)
    def play(g: ws.Graph, real: ws.Tensor, noise: ws.Tensor) -> dict[str, ws.Tensor]:
        fake = netG(noise)
        loss_d = BCE(netD(real), 1.0) + BCE(netD(ws.stop_gradient(fake)), 0.0)
        loss_g = BCE(netD(fake), 1.0)
        ws.Adam(lr=1e-2, name="d").update(g, netD.traced(g), ws.gradients(loss_d, netD))
        ws.Adam(lr=1e-2, name="g").update(g, netG.traced(g), ws.gradients(loss_g, netG))
        return {"d": loss_d, "g": loss_g}

    session = ws.build_session(play, batch_size=8)
    assert {"netG.0.weight", "netD.0.weight", "netD.1.running_var"} <= {*session.state.names}
    opt_d, opt_g = (torch.optim.Adam(t.parameters(), lr=1e-2) for t in (twinD, twinG))
    for _ in range(4):
        real, noise = normal(8, 2) + 2, normal(8, NOISE)
        fake = twinG(torch.tensor(noise))
        loss_d = torch_bce(twinD(torch.tensor(real)), 1.0) + torch_bce(twinD(fake.detach()), 0.0)
        loss_g = torch_bce(twinD(fake), 1.0)
        slopes_d = torch.autograd.grad(loss_d, [*twinD.parameters()], retain_graph=True)
        slopes_g = torch.autograd.grad(loss_g, [*twinG.parameters()])
        for parameters, slopes in ((twinD.parameters(), slopes_d), (twinG.parameters(), slopes_g)):
            for p, slope in zip(parameters, slopes, strict=True):
                p.grad = slope
        opt_d.step(), opt_g.step()
        result = session.step(real=real, noise=noise)
        np.testing.assert_allclose([result.d, result.g], [loss_d.item(), loss_g.item()], rtol=1e-4)
    assert_equal(netG, twinG, rtol=1e-3, atol=1e-4)
    assert_equal(netD, twinD, rtol=1e-3, atol=1e-4)
    noise = normal(3, NOISE)
    np.testing.assert_allclose(
        session.predict(netG, noise), twinG.eval()(torch.tensor(noise)).detach(), rtol=1e-3, atol=1e-4
    )
    with pytest.raises(UsageError, match=r"several modules: netG, netD. Say which .* session.predict\(netG, ...\)"):
        session.predict(noise=noise)
    with pytest.raises(UsageError, match=r"session.predict\(real=..., noise=...\); received 1 by position"):
        session.predict(noise)


def test_a_gan_of_two_steps_over_the_same_modules() -> (
    None
):  # S1: two sessions, each with copies of the other's weights
    (netG, netD), (twinG, twinD) = players(ws.nn), players(torch.nn)

    @ws.step(inputs=SPECS)
    def judge(g: ws.Graph, real: ws.Tensor, noise: ws.Tensor) -> ws.Tensor:
        loss = BCE(netD(real), 1.0) + BCE(netD(ws.stop_gradient(netG(noise))), 0.0)
        ws.SGD(lr=0.1).update(g, netD.traced(g), ws.gradients(loss, netD))
        return loss

    @ws.step(inputs={"noise": SPECS["noise"]})
    def forge(g: ws.Graph, noise: ws.Tensor) -> ws.Tensor:
        loss = BCE(netD(netG(noise)), 1.0)
        ws.SGD(lr=0.1).update(g, netG.traced(g), ws.gradients(loss, netG))
        return loss

    judging, forging = ws.build_session(judge, batch_size=8), ws.build_session(forge, batch_size=8)
    taught(netG, twinG), taught(netD, twinD)  # after the sessions were built
    opt_d, opt_g = (torch.optim.SGD(t.parameters(), lr=0.1) for t in (twinD, twinG))
    for _ in range(4):
        real, noise = normal(8, 2) + 2, normal(8, NOISE)
        loss_d = torch_bce(twinD(torch.tensor(real)), 1.0) + torch_bce(twinD(twinG(torch.tensor(noise)).detach()), 0.0)
        opt_d.zero_grad(), loss_d.backward(), opt_d.step()
        loss_g = torch_bce(twinD(twinG(torch.tensor(noise))), 1.0)
        opt_g.zero_grad(), loss_g.backward(), opt_g.step()
        assert judging.step(real=real, noise=noise).loss == pytest.approx(loss_d.item(), rel=1e-4)
        assert forging.step(noise=noise).loss == pytest.approx(loss_g.item(), rel=1e-4)
    assert_equal(netG, twinG, rtol=1e-3, atol=1e-5)
    assert_equal(netD, twinD, rtol=1e-3, atol=1e-5)


# -- methods other than forward ----------------------------------------------------------------------------------


class VAE(ws.nn.Module):
    def __init__(self) -> None:
        self.inner, self.mean, self.spread = ws.nn.Linear(6, 5), ws.nn.Linear(5, 2), ws.nn.Linear(5, 2)
        self.back, self.out = ws.nn.Linear(2, 5), ws.nn.Linear(5, 6)
        self.scale = ws.nn.Parameter((6,), init=1.0)

    def encode(self, x: ws.Tensor) -> tuple[ws.Tensor, ws.Tensor]:
        h = ws.relu(self.inner(x))
        return self.mean(h), self.spread(h)

    def decode(self, z: ws.Tensor) -> ws.Tensor:
        return self.out(ws.relu(self.back(z))) * self.scale

    def decay(self) -> ws.Tensor:
        return (self.scale * self.scale).sum()

    def forward(self, x: ws.Tensor) -> tuple[ws.Tensor, ws.Tensor]:
        mean, _ = self.encode(x)
        return self.decode(mean), mean


class TorchVAE(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.inner, self.mean, self.spread = nn.Linear(6, 5), nn.Linear(5, 2), nn.Linear(5, 2)
        self.back, self.out = nn.Linear(2, 5), nn.Linear(5, 6)
        self.scale = nn.Parameter(torch.ones(6))

    def loss(self, x: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.inner(x))
        mean, spread = self.mean(h), self.spread(h)
        z = mean + eps * torch.exp(0.5 * spread)
        made = self.out(torch.relu(self.back(z))) * self.scale
        kl = -0.5 * (1 + spread - mean**2 - spread.exp()).mean()
        return ((made - x) ** 2).mean() + kl + 0.01 * (self.scale**2).sum()


def test_encode_and_decode_are_methods() -> None:  # N2, N5, N6
    vae, twin = VAE(), TorchVAE()
    taught(vae, twin)

    @ws.step(inputs={"x": ws.Spec(("batch", 6)), "eps": ws.Spec(("batch", 2))})
    def train(g: ws.Graph, x: ws.Tensor, eps: ws.Tensor) -> dict[str, ws.Tensor]:
        mean, spread = vae.encode(x)
        made = vae.decode(mean + eps * ws.exp(0.5 * spread))
        kl = -0.5 * (1.0 + spread - mean * mean - ws.exp(spread)).mean()
        loss = ws.losses.mse_loss(made, x) + kl + 0.01 * vae.decay()
        grads, norm = ws.optim.clip_by_global_norm(ws.gradients(loss, vae), 0.5)
        ws.SGD(lr=0.1).update(g, vae.traced(g), grads)
        return {"loss": loss, "norm": norm}

    session, optimizer = ws.build_session(train, batch_size=8), torch.optim.SGD(twin.parameters(), lr=0.1)
    assert set(session.state.names) == set(vae.state_dict())
    for _ in range(4):
        x, eps = normal(8, 6), normal(8, 2)
        loss = twin.loss(torch.tensor(x), torch.tensor(eps))
        optimizer.zero_grad(), loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        optimizer.step()
        result = session.step(x=x, eps=eps)
        np.testing.assert_allclose([result.loss, result.norm], [loss.item(), norm.item()], rtol=1e-4)
    assert_equal(vae, twin)
    made, mean = vae.predict(x)
    again = session.predict(vae, x)
    np.testing.assert_array_equal(made, again[0]), np.testing.assert_array_equal(mean, again[1])


def test_methods_are_recorded_in_plain_graphs_and_scopes_too() -> None:
    g, vae = ws.Graph(), VAE()
    vae.decode(vae.encode(g.input("x", ("batch", 6)))[0])
    assert set(g.states) == set(vae.state_dict())
    h = ws.Graph()
    with h.scope("a"):
        vae.decode(vae.encode(h.input("x", ("batch", 6)))[0])
    assert set(h.states) == {f"a.{name}" for name in vae.state_dict()}
    assert isinstance(vae.scale, ws.nn.Parameter)


# -- names -------------------------------------------------------------------------------------------------------


class Pair(ws.nn.Module):
    def __init__(self) -> None:
        self.d, self.g = ws.nn.Linear(2, 2), ws.nn.Sequential(ws.nn.Linear(2, 2))


def layer() -> ws.nn.Linear:
    return ws.nn.Linear(2, 2)


def recorded(body: Callable[..., Any]) -> list[str]:
    """The weights of a step, whose recordings agree."""
    step = ws.step(inputs={"x": ws.Spec(("batch", 2))})(lambda g, x: body(g, x).mean())
    found = [[name for name in step.graph().states if name.endswith("weight")] for _ in range(2)]
    assert found[0] == found[1]
    return found[0]


def test_modules_are_called_as_the_step_holds_them() -> None:  # N1
    a, b, pair, act = layer(), layer(), Pair(), ws.nn.ReLU()
    nets, table, trainer = [layer(), layer()], {"up": layer(), "down": layer()}, SimpleNamespace(net=layer(), mean=0)

    def helper(x: ws.Tensor) -> ws.Tensor:
        return b(x)

    def scoped(g: ws.Graph, x: ws.Tensor) -> ws.Tensor:
        with g.scope("one"):
            x = a(x)
        with g.scope("two"):
            return b(x)

    def shared(g: ws.Graph, x: ws.Tensor) -> ws.Tensor:
        both = ws.nn.Sequential(a, b)  # made here, of layers that the step holds
        return both(x) + a(x)

    cases: dict[str, tuple[Callable[..., Any], list[str]]] = {
        "one alone": (lambda g, x: act(a(x)), ["weight"]),
        "two": (lambda g, x: b(a(x)), ["a.weight", "b.weight"]),
        "two, in the other order": (lambda g, x: a(b(x)), ["b.weight", "a.weight"]),
        "through a function": (lambda g, x: a(helper(x)), ["b.weight", "a.weight"]),
        "parts of one": (lambda g, x: pair.g(pair.d(x)), ["d.weight", "g.0.weight"]),
        "parts of one, and another": (lambda g, x: pair.d(a(x)), ["a.weight", "pair.d.weight"]),
        "a list": (lambda g, x: nets[1](nets[0](x)), ["nets.0.weight", "nets.1.weight"]),
        "a dict": (lambda g, x: table["up"](table["down"](x)), ["table.down.weight", "table.up.weight"]),
        "an attribute": (lambda g, x: trainer.net(a(x)), ["a.weight", "trainer.net.weight"]),
        "a default": (lambda g, x, net=b: net(a(x)), ["a.weight", "net.weight"]),
        "scopes": (scoped, ["one.weight", "two.weight"]),
        "made of parts": (shared, ["a.weight", "b.weight"]),
        "made in the step": (lambda g, x: layer()(x), ["weight"]),
    }
    for case, (body, names) in cases.items():
        assert recorded(body) == names, case


class Trainer:
    def __init__(self) -> None:
        self.netD, self.netG = layer(), layer()

    def loss(self, x: ws.Tensor) -> ws.Tensor:
        return self.netD(self.netG(x)).mean()

    def step(self) -> ws.Step:
        @ws.step(inputs={"x": ws.Spec(("batch", 2))})
        def train(g: ws.Graph, x: ws.Tensor) -> ws.Tensor:
            return self.loss(x)

        return train

    def __call__(self, g: ws.Graph, x: ws.Tensor) -> ws.Tensor:
        return self.loss(x)


def test_attributes_of_self_are_called_without_it() -> None:
    names, made = ["netG.weight", "netG.bias", "netD.weight", "netD.bias"], ws.step(inputs={"x": ws.Spec(("batch", 2))})
    assert [*Trainer().step().graph().parameters] == names
    assert [*made(Trainer()).graph().parameters] == names
    assert [*made(Trainer().__call__).graph().parameters] == names


def test_parts_of_modules_are_traced_and_clashes_name_scopes() -> None:
    pair, g = Pair(), ws.Graph()
    x = g.input("x", ("batch", 2))
    pair.d(x)
    assert {*pair.d.traced(g)} == {"weight", "bias"} == {*pair.traced(g)} - {"d.weight", "d.bias"} | {*pair.d.traced(g)}
    with pytest.raises(UsageError, match="this Sequential was not called in the graph, nor was any part of it"):
        pair.g.traced(g)
    with pytest.raises(
        GraphError, match=r"(?s)'weight' is already used .* a prefix .*: with g.scope\('other'\).*test_modules_in"
    ):
        layer()(x)


# -- distilling, transferring, copying ---------------------------------------------------------------------------


def test_a_fitted_teacher_teaches_and_a_head_is_exchanged() -> None:  # S1, S2
    x = normal(32, 4)
    y = (x @ normal(4, 1)).astype(np.float32)
    teacher = ws.nn.Sequential(ws.nn.Linear(4, 8), ws.nn.Tanh(), ws.nn.Linear(8, 1))
    ws.fit(teacher, (x, y), loss="mse", optimizer=ws.Adam(lr=0.05), epochs=30, batch_size=32, progress=False)
    before, right = teacher.state_dict(), teacher.predict(x)
    student = ws.nn.Linear(4, 1)

    @ws.step(inputs={"x": ws.Spec(("batch", 4))})
    def distil(g: ws.Graph, x: ws.Tensor) -> dict[str, ws.Tensor]:
        aim = ws.stop_gradient(teacher(x))
        loss = ws.losses.mse_loss(student(x), aim)
        ws.SGD(lr=0.1).update(g, student.traced(g), ws.gradients(loss, student))
        return {"loss": loss, "aim": aim}

    session = ws.build_session(distil, batch_size=32)
    np.testing.assert_allclose(session.step(x=x).aim, right, rtol=1e-5, atol=1e-6)
    session.run(x=x, epochs=60)
    assert all(np.array_equal(a, before[name]) for name, a in teacher.state_dict().items())
    assert np.mean((student.predict(x) - right) ** 2) == pytest.approx(session.evaluate(x=x).loss, rel=1e-4)
    assert session.evaluate(student, x, y, loss="mse")["loss"] < 0.2 * np.var(y)

    features = ws.nn.Sequential(teacher[0], teacher[1])
    np.testing.assert_allclose(teacher[2].predict(features.predict(x)), right, rtol=1e-5, atol=1e-6)
    teacher.layers[2] = ws.nn.Linear(8, 3)  # another head of the same network
    assert teacher.predict(x).shape == (32, 3)
    teacher.freeze("0.*")
    labels = np.arange(32) % 3
    ws.fit(teacher, (x, labels), loss="cross_entropy", optimizer=ws.Adam(), epochs=1, batch_size=32, progress=False)
    assert np.array_equal(teacher[0].state_dict()["weight"], before["0.weight"])
    teacher.unfreeze("0.*")
    ws.fit(teacher, (x, labels), loss="cross_entropy", optimizer=ws.Adam(), epochs=1, batch_size=32, progress=False)
    assert not np.array_equal(features[0].state_dict()["weight"], before["0.weight"])


def test_a_copy_has_its_own_numbers() -> None:  # audit d25
    model, x = ws.nn.Linear(4, 1), normal(8, 4)
    model.predict(x)
    twin = copy.deepcopy(model)
    np.testing.assert_array_equal(twin.predict(x), model.predict(x))
    twin.load_state_dict({name: a + 1.0 for name, a in twin.state_dict().items()})
    assert np.abs(twin.predict(x) - model.predict(x)).min() > 1e-3


def test_the_loss_of_fit_may_call_another_network() -> None:
    model, judge = ws.nn.Linear(3, 3), ws.nn.Linear(3, 3)
    judge.freeze("*")
    judge.load_state_dict({"weight": np.eye(3, dtype=np.float32) * 2.0, "bias": np.zeros(3, np.float32)})
    x = normal(8, 3)

    def perceptual(out: ws.Tensor, target: ws.Tensor) -> ws.Tensor:
        return ws.losses.mse_loss(judge(out), judge(target))

    how: dict[str, Any] = {"inputs": ws.Spec(("batch", 3)), "targets": ws.Spec(("batch", 3)), "loss": perceptual}
    session = ws.build_session(model, batch_size=8, **how)
    assert {"weight", "bias", "judge.weight"} <= {*session.state.names}
    wanted = 4.0 * np.mean((model.predict(x) - x) ** 2)
    assert session.step(x=x, labels=x).loss == pytest.approx(wanted, rel=1e-5)


def test_modules_made_in_a_step_are_the_steps() -> None:
    @ws.step(inputs={"x": ws.Spec(("batch", 2))})
    def own(g: ws.Graph, x: ws.Tensor) -> ws.Tensor:
        made = ws.nn.Linear(2, 1)
        loss = (made(x) ** 2).mean()
        ws.SGD(lr=0.1).update(g, made.traced(g), ws.gradients(loss, made))
        return loss

    one, two = ws.build_session(own, batch_size=4), ws.build_session(own, batch_size=4)
    x = normal(4, 2)
    first = one.step(x=x).loss
    assert two.step(x=x).loss < first
    np.testing.assert_array_equal(one.get("weight"), two.get("weight"))


def test_numbers_live_as_long_as_the_module_or_a_session() -> None:
    def trained(model: ws.nn.Module) -> ws.Session:
        @ws.step(inputs={"x": ws.Spec(("batch", 2))})
        def train(g: ws.Graph, x: ws.Tensor) -> ws.Tensor:
            loss = (model(x) ** 2).mean()
            ws.SGD(lr=0.1).update(g, model.traced(g), ws.gradients(loss, model))
            return loss

        session = ws.build_session(train, batch_size=4)
        session.step(x=normal(4, 2))
        return session

    model = ws.nn.Linear(2, 1)
    session = trained(model)
    kept, state, network = session.get("weight"), weakref.ref(session.state), weakref.ref(model)
    del session
    gc.collect()
    assert state() is None
    np.testing.assert_array_equal(model.state_dict()["weight"], kept)
    slot = weakref.ref(model.__dict__["_owned"]["weight"].slot)
    session = trained(model)
    del model
    gc.collect()
    assert session.get("weight").shape == (1, 2)
    del session
    gc.collect()
    assert network() is None
    assert slot() is None


def test_a_checkpoint_of_a_step_has_its_names_and_comes_back() -> None:
    def build() -> tuple[ws.nn.Module, ws.nn.Module, ws.Session]:
        netG, netD = ws.nn.Linear(2, 2), ws.nn.Linear(2, 1)

        @ws.step(inputs={"x": ws.Spec(("batch", 2))})
        def train(g: ws.Graph, x: ws.Tensor) -> ws.Tensor:
            loss = (netD(netG(x)) ** 2).mean()
            params = {**{f"g.{n}": t for n, t in netG.traced(g).items()}, **netD.traced(g)}
            ws.Adam(lr=0.1).update(g, params, ws.gradients(loss, params))
            return loss

        return netG, netD, ws.build_session(train, batch_size=4)

    x = normal(4, 2)
    netG, _, session = build()
    session.step(x=x)
    stored = session.state_dict()
    assert {"netG.weight", "netD.bias"} <= stored.keys()
    wanted = session.step(x=x).loss
    other, _, resumed = build()
    resumed.load_state_dict(stored)
    assert resumed.step(x=x).loss == wanted
    np.testing.assert_array_equal(other.state_dict()["weight"], netG.state_dict()["weight"])


def test_inputs_may_have_numbers_of_rows_of_their_own() -> None:  # N4
    class Messages(ws.nn.Module):
        def __init__(self) -> None:
            self.linear = ws.nn.Linear(2, 2)

        def forward(self, x: ws.Tensor, edges: ws.Tensor) -> ws.Tensor:
            return self.linear(x)[edges]

    model, x = Messages(), normal(5, 2)
    edges = np.array([4, 0, 1, 1, 2, 2, 3])
    plain = model.linear.predict(x)
    np.testing.assert_allclose(model.predict(x, edges), plain[edges], rtol=1e-6)
    np.testing.assert_allclose(model.predict(x, edges[:3]), plain[edges[:3]], rtol=1e-6)

    class Sum(ws.nn.Module):
        def __init__(self) -> None:
            self.linear = ws.nn.Linear(2, 2)

        def forward(self, *xs: ws.Tensor) -> ws.Tensor:
            return sum((self.linear(x) for x in xs[1:]), start=self.linear(xs[0]))

    total = Sum()
    np.testing.assert_allclose(total.predict(x, x, x), 3.0 * total.predict(x), rtol=1e-5)
    with pytest.raises(ShapeError, match=r"different numbers of rows, \{'xs0': 5, 'xs1': 4\}, and so: add cannot"):
        total.predict(x, x[:4])
