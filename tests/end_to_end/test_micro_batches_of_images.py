"""Accumulated gradients of convolutions and pools: the parts of a batch add up to the whole."""

from __future__ import annotations

import numpy as np

import wholestep as ws

ROWS = 18  # more than the sixteen sums that a weight gradient through a pool is kept in
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(ROWS, 2, 10, 10)).astype(np.float32), (np.arange(ROWS) % 3).astype(np.int32)


def trained(accumulate: int) -> dict[str, np.ndarray]:
    model = ws.nn.Sequential(
        ws.nn.Conv2d(2, 8, 3), ws.nn.ReLU(), ws.nn.MaxPool2d(2), ws.nn.Flatten(), ws.nn.Linear(128, 3)
    )
    session = ws.build_session(
        model,
        inputs=ws.Spec(("batch", 2, 10, 10)),
        targets=ws.Spec(("batch",), "int32"),
        loss="cross_entropy",
        optimizer=ws.SGD(lr=0.2),
        batch_size=ROWS // accumulate,
        accumulate=accumulate,
        options=ws.CompileOptions(compiler="cc -O0", verify=False),
    )
    if accumulate == 1:
        assert any(getattr(k.body, "op", "") == "pooled_grad_weight" for k in session.plan.kernels)
    for seed, name in enumerate(model.state_dict()):
        session.set(name, np.random.default_rng(seed).normal(size=session.get(name).shape).astype(np.float32) / 3)
    for rows in (slice(0, ROWS), slice(3, ROWS), slice(0, 8)):  # whole steps and ragged ones
        session.step(x=X[rows], labels=Y[rows])
    return {name: np.array(session.get(name)) for name in model.state_dict()}


def test_micro_batches_equal_the_large_batch() -> None:
    whole = trained(1)
    for name, value in trained(3).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-4, atol=1e-5, err_msg=name)
