"""Modules of the user's own, once in our words and once in torch's, with the same names of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import wholestep as ws

# -- ours --------------------------------------------------------------------------------------------------------


class Only(ws.nn.Module):
    """A part of what a layer returns."""

    def __init__(self, layer: ws.nn.Module, pick: Callable[[Any], Any]) -> None:
        self.layer, self.pick = layer, pick

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.pick(self.layer(x))


class Branches(ws.nn.Module):
    def __init__(self, bodies: Sequence[ws.nn.Module]) -> None:
        self.bodies = list(bodies)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return ws.concat([body(x) for body in self.bodies], axis=-1)


class Folded(ws.nn.Module):
    def __init__(self, body: ws.nn.Module) -> None:
        self.body = body

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        out = self.body(x.reshape((x.shape[0] * x.shape[1], *x.shape[2:])))
        return out.reshape((*x.shape[:2], *out.shape[1:]))


class Tied(ws.nn.Module):
    def __init__(self, width: int) -> None:
        self.weight = ws.nn.Parameter((width, width))

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return ws.tanh(x @ self.weight) @ self.weight.T


class Positions(ws.nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.table = ws.nn.Parameter(shape)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return x + self.table


class Cell(ws.nn.Module):
    """h' = tanh(x·w + h·u), with a gate of x; from the last step to the first where `reverse`."""

    def __init__(self, inputs: int, hidden: int, reverse: bool, batch_first: bool) -> None:
        self.w, self.u = ws.nn.Parameter((inputs, hidden)), ws.nn.Parameter((hidden, hidden))
        self.hidden, self.reverse, self.batch_first = hidden, reverse, batch_first

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        steps = x.transpose(0, 1) if self.batch_first else x
        w, u = self.w, self.u

        def cell(h: ws.Tensor, now: ws.Tensor) -> tuple[ws.Tensor, ws.Tensor]:
            h = ws.tanh(now @ w + h @ u)
            return h, h * ws.sigmoid(now).mean(-1, keepdims=True)

        first = (steps[0, :, :1] * 0.0).expand(steps.shape[1], self.hidden)
        _, out = ws.scan(cell, first, steps, reverse=self.reverse)
        return out.transpose(0, 1) if self.batch_first else out


# -- torch's -----------------------------------------------------------------------------------------------------


class TorchOnly(torch.nn.Module):
    """A function, or a part of what a layer returns for arguments made from x."""

    def __init__(self, function: Callable[[Any], Any], layer: torch.nn.Module | None = None, given: Any = None) -> None:
        super().__init__()
        self.function, self.layer, self.given = function, layer, given

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.layer is None:
            return self.function(x)
        if self.given is None:
            return self.function(self.layer(x))
        query, key, value, padding, weights, mask = self.given(x)
        return self.function(self.layer(query, key, value, padding, weights, mask))


class TorchNormOfOne(torch.nn.LayerNorm):
    """Written out, x - mean(x) of one number is 0, and so are its gradients: torch's kernel leaves what rounding does.

    It computes x/s - mean/s, 1e-15 instead of 0, and Lion takes the sign of that.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        axes = tuple(range(-len(self.normalized_shape), 0))
        centred = x - x.mean(axes, keepdim=True)
        return centred / (centred.square().mean(axes, keepdim=True) + self.eps).sqrt() * self.weight + self.bias


class TorchResidual(torch.nn.Module):
    def __init__(self, body: torch.nn.Module, shortcut: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x if self.shortcut is None else self.shortcut(x)) + self.body(x)


class TorchBranches(torch.nn.Module):
    def __init__(self, bodies: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.bodies = torch.nn.ModuleList(bodies)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([body(x) for body in self.bodies], -1)


class TorchFolded(torch.nn.Module):
    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x.flatten(0, 1))
        return out.reshape(*x.shape[:2], *out.shape[1:])


class TorchTied(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width) * width**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight) @ self.weight.T


class TorchPositions(torch.nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(*shape) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


class TorchCell(torch.nn.Module):
    def __init__(self, inputs: int, hidden: int, reverse: bool, batch_first: bool) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(inputs, hidden) * inputs**-0.5)
        self.u = torch.nn.Parameter(torch.randn(hidden, hidden) * 0.5 * hidden**-0.5)
        self.reverse, self.batch_first = reverse, batch_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = list((x.transpose(0, 1) if self.batch_first else x).unbind(0))
        h, out = torch.zeros(steps[0].shape[0], self.u.shape[0], dtype=x.dtype), []
        for now in reversed(steps) if self.reverse else steps:
            h = torch.tanh(now @ self.w + h @ self.u)
            out.append(h * torch.sigmoid(now).mean(-1, keepdim=True))
        stacked = torch.stack(out[::-1] if self.reverse else out)
        return stacked.transpose(0, 1) if self.batch_first else stacked
