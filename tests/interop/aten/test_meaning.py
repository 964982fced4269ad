"""Semantics of a torch module beyond its ops: custom backwards, in-place writes, checks; compared with torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import wholestep as ws

ROWS = 4


class _Surrogate(torch.autograd.Function):
    """A step, whose gradient is said to be that of a smooth one."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Any) -> Any:
        (x,) = ctx.saved_tensors
        return slope / (1 + 10 * x.abs()) ** 2


class _Parted(torch.autograd.Function):
    """In the newer form: several results, one without a gradient; numbers among the arguments; a slope to be summed."""

    @staticmethod
    def forward(x: Any, bias: Any, scale: float = 2.0) -> Any:
        return x.round(), x.abs() + bias, (x > 0).sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[2]
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any, third: Any) -> Any:
        return first * ctx.scale - second, second, None


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Any) -> Any:
        return slope.neg() * ctx.factor, None


class OwnBackwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.bias = nn.Linear(3, 4), nn.Linear(4, 2), nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        h = self.one(x)
        spikes = _Surrogate.apply(h - 0.1)
        rounded, moved, count = _Parted.apply(3 * h, self.bias)
        return self.two(spikes + rounded + moved + _Reversal.apply(h, 0.5)) + count


class Written(nn.Module):
    """Buffers that change under no_grad and behind detach, one that nobody reads, a teacher that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
        self.teacher = nn.Linear(3, 2).requires_grad_(False)
        self.register_buffer("last", torch.zeros(2))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        with torch.no_grad():
            self.last.copy_(y[0])
            self.calls.fill_(7)
            self.teacher.weight.mul_(0.9).add_(self.norm.weight, alpha=0.1)
        self.mean.detach()[:1].mul_(0.5).add_(y.detach().mean())
        return y - 0.1 * self.teacher(x) + self.mean


class Checked(nn.Module):
    """What looks at its numbers, to no effect: distributions, masks that might be causal; and recomputation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(4, 2, 1, 1, 4, 0.0, batch_first=True)
        self.enter, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        h = self.enter(x)[:, None].expand(-1, 3, -1)
        mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
        h = checkpoint(lambda v: torch.tanh(self.inner(v, v, tgt_mask=mask)), h, use_reentrant=True)
        y = self.out(h.mean(1))
        return torch.distributions.Normal(y, torch.nn.functional.softplus(y)).log_prob(y.detach() + 0.1)


MODULES = {m.__name__: m for m in (OwnBackwards, Written, Checked)}


@pytest.mark.parametrize("name", MODULES)
def test_trained_as_by_torch(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().double()
    x, y = np.random.default_rng(0).normal(size=(ROWS, 3)), np.ones((ROWS, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ws.errors.TrainingWarning)
        net = ws.from_torch(module, x[:1], mode="train")
    ws.fit(
        net, (x, y), loss="mse", optimizer=ws.SGD(lr=0.1), epochs=3, batch_size=ROWS, device="reference", progress=False
    )
    rule = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        rule.zero_grad()
        nn.functional.mse_loss(module(torch.tensor(x)), torch.tensor(y)).backward()
        rule.step()
    assert net.state_dict().keys() == module.state_dict().keys()
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[key], value.numpy(), 1e-9, 1e-10, err_msg=key)


def test_what_is_patched_while_exporting_is_put_back() -> None:
    ws.from_torch(nn.Linear(3, 2), np.ones((2, 3), np.float32), mode="train")
    assert torch.autograd.Function.apply.__module__ == "torch.autograd.function"
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert torch.distributions.Distribution._validate_args
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    assert nn.modules.transformer._detect_is_causal_mask(mask)


# -- what is refused, and what is fixed --------------------------------------------------------------------------


class Overwriting(nn.Linear):
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        with torch.no_grad():
            y[:, 0].zero_()
        return y


class Through(nn.Linear):
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        y.detach().mul_(2.0)
        return y


def test_writing_that_has_no_gradient_is_refused() -> None:
    x = np.ones((2, 3), np.float32)
    for module in (Overwriting(3, 2), Through(3, 2)):
        with pytest.raises(ws.errors.UsageError, match="is changed in place under no_grad, or behind detach"):
            ws.from_torch(module, x, mode="train")
    with pytest.raises(ws.errors.UsageError, match=r"changes 'weight' \(parameter mutation\).*that need no gradient"):
        ws.from_torch(nn.Embedding(5, 3, max_norm=1.0), np.zeros((2, 3), np.int64), mode="train")


class Halves(nn.Linear):
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y.reshape(x.shape[0] // 2, 2, 2).sum(1)


def test_sizes_are_fixed_where_an_op_needs_them() -> None:
    torch.manual_seed(0)
    module, x = Halves(3, 2), np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    with pytest.warns(ws.errors.TrainingWarning, match=r"needs the sizes of the example: aten\.\w+.* has the size"):
        net = ws.from_torch(module, x, mode="train")
    assert net.fixed_batch
    np.testing.assert_allclose(net.predict(x, device="reference"), module(torch.tensor(x)).detach(), 1e-5, 1e-6)
