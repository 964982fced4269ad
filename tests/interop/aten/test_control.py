"""Branches, loops and maps of torch: what they hold is recorded, with torch's values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import wholestep as ws
from wholestep.errors import UnsupportedOpError


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)


class Branch(Two):
    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: self.a(v).relu(), lambda v: self.b(v).tanh() + v.detach(), (x,))


class Nested(Two):
    def forward(self, x: Any) -> Any:
        inner = lambda v: torch.cond(v[0, 0] > 0, lambda u: self.a(u), lambda u: self.b(u) * 2.0, (v,))  # noqa: E731
        return torch.cond(x.mean() > 0, inner, lambda v: self.b(v).sin(), (x,))


class Loop(Two):
    def forward(self, x: Any) -> Any:
        def step(h: Any, v: Any) -> Any:
            h = torch.tanh(self.a(v) + self.b(h))
            return h, h * 2.0

        start = torch.zeros(x.shape[0], 4, dtype=x.dtype)
        last, all_of_them = scan(step, start, x.unsqueeze(1).repeat(1, 3, 1).transpose(0, 1) * 0.5)
        return last + all_of_them.sum(0)


class Mapped(Two):
    def forward(self, x: Any) -> Any:
        return torch_map(lambda row, w: torch.tanh(self.a(row)) * w.sum(), x, self.b.weight)


@pytest.mark.parametrize("kind", [Branch, Nested, Loop, Mapped])
def test_what_an_op_holds_is_trained_as_in_torch(kind: Any) -> None:
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    module = kind().double()
    batches = [rng.normal(size=(5, 4)) + shift for shift in (1.0, -1.0)]  # either branch is taken once
    net = ws.from_torch(module, batches[0])
    assert not net.fixed_batch
    session = ws.build_session(
        net, inputs=ws.Spec(("batch", 4), "float64"), targets=ws.Spec(("batch", 4), "float64"),
        capacity={"batch": 5}, loss=lambda y, t: ((y - t) * (y - t)).mean(), optimizer=ws.SGD(lr=0.1),
    )  # fmt: skip
    theirs = torch.optim.SGD(module.parameters(), lr=0.1)
    names = [node.attrs.name for node in net._program.graph.inputs]
    for x in batches:
        theirs.zero_grad()
        loss = ((module(torch.from_numpy(x)) - 0.5) ** 2).mean()
        loss.backward()
        theirs.step()
        ours = session.step({names[0]: x, "labels": np.full((5, 4), 0.5)})
        np.testing.assert_allclose(float(ours), float(loss.detach()), 1e-12)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value.numpy(), 1e-10, 1e-12, err_msg=name)


class Repeated(Two):
    def __init__(self, until: Any) -> None:
        super().__init__()
        self.until = until

    def forward(self, x: Any) -> Any:
        start = (torch.zeros((), dtype=torch.int64), x)
        return while_loop(self.until, lambda i, v: (i + 1, torch.tanh(self.a(v))), start)[1]


def test_loops_of_a_fixed_number_of_rounds_are_written_out() -> None:
    torch.manual_seed(0)
    module = Repeated(lambda i, v: i < 3)
    x = torch.randn(5, 4)
    net = ws.from_torch(module, x, mode="train")
    assert sum(node.op == "tanh" for node in net._program.graph.nodes) == 3
    np.testing.assert_allclose(net.predict(x.numpy()), module(x).detach().numpy(), 1e-5, 1e-6)


def test_loops_that_the_data_ends_are_refused() -> None:
    module = Repeated(lambda i, v: v.sum() < 3)
    with pytest.raises(UnsupportedOpError, match=r"while_loop.*runs as often as the data says"):
        ws.from_torch(module, torch.randn(5, 4), mode="train")


def test_ops_inside_are_counted_and_named() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda v: torch.special.airy_ai(v), lambda v: v * 2.0, (x,))

    found = ws.torch_coverage(Odd(), torch.randn(3, 4))
    assert [op.name for op in found.missing] == ["aten.special_airy_ai.default"]
    with pytest.raises(UnsupportedOpError, match=r"special_airy_ai.*has no row here"):
        ws.from_torch(Odd(), torch.randn(3, 4))
