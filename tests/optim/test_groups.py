"""Parameter groups: their own scalars, freezing, other optimizers, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import OptionError, UnknownNameError, UsageError
from wholestep.optim import Optimizer

Array = np.ndarray[Any, Any]
SHAPES = {"embed.weight": (4, 3), "layer.weight": (3, 3), "layer.bias": (3,), "head.weight": (2, 3), "head.bias": (2,)}


def arrays(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def linear() -> ws.Graph:
    """loss = Σ w·d, so that the gradient of each w is the input d."""
    g, loss = ws.Graph(), 0.0
    for name, start in arrays(0).items():
        w = g.parameter(name, start.shape, init=start, dtype="float64")
        loss = loss + (w * g.input(f"d {name}", w.shape, "float64")).sum()
    g.set_outputs({"loss": loss})
    return g


def train(session: ws.Session, steps: int = 5) -> dict[str, Array]:
    for number in range(steps):
        session.step({f"d {n}": d for n, d in arrays(1 + number).items()})
    return {n: session.get(n) for n in SHAPES}


def torch_trained(kind: Any, groups: dict[str, dict[str, Any]], steps: int = 5, **options: Any) -> dict[str, Array]:
    weights = {n: torch.nn.Parameter(torch.tensor(a)) for n, a in arrays(0).items()}
    of = {n: next((p for p in groups if p in n), "") for n in weights}
    optimizer = kind(
        [{"params": [w for n, w in weights.items() if of[n] == p], **groups.get(p, {})} for p in ("", *groups)],
        **options,
    )
    for number in range(steps):
        for n, d in arrays(1 + number).items():
            weights[n].grad = torch.tensor(d)
        optimizer.step()
    return {n: w.detach().numpy() for n, w in weights.items()}


def assert_equal(ours: dict[str, Array], theirs: dict[str, Array]) -> None:
    for name in SHAPES:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-12, atol=1e-13, err_msg=name)


def test_groups_equal_torchs_groups() -> None:
    optimizer = ws.AdamW(
        1e-2, weight_decay=0.1, decay_on=("*",),
        groups=[ws.Group("*.bias", weight_decay=0.0), ws.Group("head.*", lr=0.1, betas=(0.5, 0.9))],
    )  # fmt: skip
    session = ws.build_session(linear(), optimizer=optimizer)
    assert dict(session.scalars.items()) == optimizer.runtime_values()
    assert {"optimizer.lr", "optimizer.head.lr", "optimizer.head.beta1"} <= set(optimizer.runtime_values())
    assert "optimizer.bias.lr" not in optimizer.runtime_values()  # shared with the optimizer
    theirs = torch_trained(
        torch.optim.AdamW,
        {".bias": {"weight_decay": 0.0}, "head.": {"lr": 0.1, "betas": (0.5, 0.9)}},
        lr=1e-2,
        weight_decay=0.1,
    )
    assert_equal(train(session), theirs)


def test_a_groups_scalars_are_live_and_shared_ones_reach_it() -> None:
    optimizer = ws.SGD(0.1, groups=[ws.Group("head.*", lr_scale=0.5), ws.Group("embed.*", lr=0.3)])
    session = ws.build_session(linear(), optimizer=optimizer)
    compiles = compile_counter.value
    session.set_learning_rate(0.2)
    session.scalars["optimizer.embed.lr"] = 0.7
    session.optimizer["head"].lr_scale = 0.25
    assert session.optimizer["embed"].lr == 0.7
    with pytest.raises(
        UnknownNameError, match="no group 'tail'has hyperparameters of its own; there are: 'embed', 'head'"
    ):
        session.optimizer["tail"]
    after, before, slopes = train(session, 1), arrays(0), arrays(1)
    for name, lr in (("layer.weight", 0.2), ("embed.weight", 0.7), ("head.weight", 0.05), ("head.bias", 0.05)):
        np.testing.assert_allclose(after[name], before[name] - lr * slopes[name], rtol=1e-12, err_msg=name)
    assert compile_counter.value == compiles


def test_a_frozen_group_keeps_its_bits_and_needs_no_path_to_the_loss() -> None:
    g = linear()
    g.parameter("embed.unused", (2,))
    session = ws.build_session(g, optimizer=ws.Adam(groups=[ws.Group("embed.*", frozen=True)]))
    after = train(session)
    assert after["embed.weight"].tobytes() == arrays(0)["embed.weight"].tobytes()
    assert (after["head.bias"] != arrays(0)["head.bias"]).all()
    assert not any(name.startswith("embed.weight.adam") for name in session.state.names)


def test_another_optimizer_for_a_group() -> None:
    rest = ws.Group(ndim=(0, 1), name="rest", optimizer=ws.AdamW(lr=0.02, weight_decay=0.0))
    session = ws.build_session(linear(), optimizer=ws.SGD(0.1, groups=[rest]))
    assert {"optimizer.lr", "optimizer.rest.lr", "optimizer.rest.eps"} <= dict(session.scalars.items()).keys()
    after = train(session)
    sgd, adamw = (
        torch_trained(torch.optim.SGD, {}, lr=0.1),
        torch_trained(torch.optim.AdamW, {}, lr=0.02, weight_decay=0),
    )
    assert_equal(after, {n: (adamw if n.endswith("bias") else sgd)[n] for n in SHAPES})


def test_a_predicate_and_the_first_match() -> None:
    def small(p: ws.Tensor) -> bool:
        return p.ndim < 2

    groups = [ws.Group(small, lr=0.5), ws.Group("head.*", lr=0.25)]
    session = ws.build_session(linear(), optimizer=ws.SGD(0.1, groups=groups))
    assert {"optimizer.small.lr", "optimizer.head.lr"} <= dict(session.scalars.items()).keys()
    after, before, slopes = train(session, 1), arrays(0), arrays(1)
    np.testing.assert_allclose(after["head.bias"], before["head.bias"] - 0.5 * slopes["head.bias"], rtol=1e-12)
    np.testing.assert_allclose(after["head.weight"], before["head.weight"] - 0.25 * slopes["head.weight"], rtol=1e-12)


def test_a_decay_that_a_group_names_acts_on_its_vectors() -> None:
    optimizer = ws.AdamW(groups=[ws.Group("head.*", weight_decay=0.5)])
    weights = {n: np.ones(shape) for n, shape in SHAPES.items()}
    optimizer.step(weights, {n: np.zeros_like(w) for n, w in weights.items()})
    assert (weights["head.bias"] < 1.0).all()
    assert (weights["layer.bias"] == 1.0).all()


def test_groups_survive_json_and_structure_tells_them_apart() -> None:
    optimizer = ws.Muon(
        groups=[
            ws.Group(["embed.*", "head.*"], name="ends", optimizer=ws.AdamW(betas=(0.8, 0.9))),
            ws.Group(ndim=1, name="rest", lr=ws.runtime(0.0)),
            ws.Group("x", frozen=True),
        ]
    )
    assert Optimizer.from_config(json.loads(json.dumps(optimizer.to_config()))) == optimizer
    one, two = (ws.SGD(groups=[ws.Group("a", lr=lr)]) for lr in (0.1, 0.2))
    assert one.structure() == two.structure() != ws.SGD(groups=[ws.Group("b", lr=0.1)]).structure()
    assert one.structure() != ws.SGD(groups=[ws.Group("a", frozen=True)]).structure()


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: ws.Group("a", lr=0.1, lr_scale=0.5), UsageError, "lr and lr_scale exclude each other"),
        (lambda: ws.Group("a", lr_scale=-1.0), OptionError, r"Group\('a'\): lr_scale must be at least 0"),
        (lambda: ws.Group("a", frozen=True, lr=0.1), UsageError, "is frozen, so it takes no other options"),
        (lambda: ws.Group("a", lr=0.1, optimizer=ws.SGD()), UsageError, "has an optimizer of its own"),
        (lambda: ws.Group(lambda p: True), UsageError, "a predicate without a name needs one"),
        (lambda: ws.Group([]), UsageError, r"match is a name pattern, several, or a predicate; received \(\)"),
        (lambda: ws.SGD(groups=["a"]), UsageError, r"groups must be a list of ws\.Group\(\.\.\.\); received \['a'\]"),
        (lambda: ws.SGD(groups=[ws.Group("a"), ws.Group("a.*")]), OptionError, "two groups are called 'a'"),
        (lambda: ws.SGD(groups=[ws.Group("a", lr=-1.0)]).runtime_values(), OptionError, "SGD: lr must be at least 0"),
        (
            lambda: ws.SGD(groups=[ws.Group("a", betas=(0.1, 0.2))]).runtime_values(),
            OptionError,
            r"Group\('a'\): SGD has no option 'betas' for a group; it has: lr, momentum",
        ),
        (lambda: ws.SGD(groups=[ws.Group(bool, name="x")]).to_config(), UsageError, "cannot be written down"),
    ],
)
def test_groups_that_are_refused(make: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (
            [ws.Group("tail.*", lr=0.1)],
            r"(?s)Group\('tail'\): 'tail\.\*' matches none of the parameters \['embed\.weight'",
        ),
        ([ws.Group("tail.*", frozen=True)], r"Group\('tail'\): 'tail\.\*' matches none"),
        ([ws.Group("head.bias", ndim=2, lr=0.1)], r"'head\.bias' with ndim \(2,\) matches none"),
        (
            [ws.Group("*.bias"), ws.Group("head.bias", name="b")],
            r"has nothing left: earlier groups have \['head\.bias'\]",
        ),
    ],
)
def test_a_pattern_that_matches_nothing_is_an_error(groups: list[ws.Group], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ws.compile_training_graph(linear(), optimizer=ws.SGD(groups=groups))
