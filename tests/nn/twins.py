"""A module of ours and the same module of torch: equal weights and inputs; values and every gradient are compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

import wholestep as ws

TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


def assert_twins(
    ours: ws.nn.Module,
    theirs: torch.nn.Module,
    inputs: Sequence[np.ndarray],
    dtype: str,
    threads: int = 1,
    device: str = "cpu",
    **call: object,
) -> None:
    """Outputs, parameter gradients and input gradients agree, for an upstream gradient that is not 1."""
    if any(p.dtype.is_float and p.dtype.name != dtype for p in ours.named_arrays().values()):
        ours.astype(dtype)
    theirs = theirs.to(getattr(torch, dtype))
    report = ours.load_state_dict(theirs.state_dict())
    assert not report.missing
    assert not report.unexpected
    given = [a.astype(dtype) if a.dtype.kind == "f" else a for a in inputs]
    expected, slopes = _torch(theirs, given, call)
    found = _ours(ours, given, dtype, threads, device)
    scale = max(float(np.abs(s).max()) for s in slopes.values())
    assert_close(found["output"], expected, dtype, 0.0, "output")
    for name, slope in slopes.items():
        assert_close(found[f"{name}.grad"], slope, dtype, 1e-4 * scale, name)


def assert_close(found: np.ndarray, expected: np.ndarray, dtype: str, least: float, what: str) -> None:
    """Relative to the tensor's own scale, or to a small part of the largest one's."""
    assert found.shape == expected.shape, what
    scale = max(float(np.abs(expected).max()), least, 1e-30)
    gap = float(np.abs(found - expected).max()) / scale
    assert gap <= TOLERANCE[dtype], f"{what}: {gap:.2e}"


def upstream(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape)


def _torch(module: torch.nn.Module, inputs: Sequence[np.ndarray], call: dict) -> tuple[np.ndarray, dict]:
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs]
    out = module(*tensors, **call)
    (out * torch.tensor(upstream(tuple(out.shape))).to(out.dtype)).sum().backward()
    slopes = {name: p.grad.numpy() for name, p in module.named_parameters()}
    slopes.update({f"x{i}": t.grad.numpy() for i, t in enumerate(tensors) if t.grad is not None})
    return out.detach().numpy(), slopes


def _ours(
    module: ws.nn.Module, inputs: Sequence[np.ndarray], dtype: str, threads: int, device: str
) -> dict[str, np.ndarray]:
    @ws.step(inputs={f"i{i}": ws.Spec(a.shape, a.dtype.name) for i, a in enumerate(inputs) if a.dtype.kind != "f"})
    def probe(g: ws.Graph, **indices: ws.Tensor) -> dict[str, ws.Tensor]:
        tensors = [
            g.state(f"x{i}", a.shape, init=a, dtype=dtype) if a.dtype.kind == "f" else indices[f"i{i}"]
            for i, a in enumerate(inputs)
        ]
        out = module(*tensors)
        loss = (out * upstream(tuple(int(e) for e in out.shape)).astype(dtype)).sum()
        wanted = {**module.traced(g), **{t.name: t for t in tensors if t.dtype.is_float}}
        slopes = ws.gradients(loss, wanted)
        return {"loss": loss, "output": out, **{f"{name}.grad": s for name, s in slopes.items()}}

    session = ws.build_session(probe, threads=threads if device == "cpu" else None, device=device)
    for name, value in module.state_dict().items():
        session.set(name, value)
    return session.step({f"i{i}": a for i, a in enumerate(inputs) if a.dtype.kind != "f"}).outputs
