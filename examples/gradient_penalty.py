"""A gradient inside a loss: a critic with gradient penalty (arXiv:1704.00028) measures the distance of two clouds.

Over all functions of slope 1, the largest difference of a function's means on the two clouds is their Wasserstein
distance.  The penalty ‖∇critic‖ → 1 between the clouds contains a gradient, so its training needs a second
derivative: `ws.gradients` nests.  The clouds are a Gaussian and a copy shifted by (3, 4): their distance is 5.
"""

from __future__ import annotations

import argparse

import numpy as np

import wholestep as ws

HIDDEN = 64
BATCH = 128
ROUNDS = 8
UPDATES = 200  # per round
PENALTY = 100.0  # with λ the slope converges to 1 + distance/(2λ), so the measured distance is too large by that factor
MOVED = np.array([3.0, 4.0])


def network(dtype: str = "float32") -> ws.Graph:
    """The critic's loss, the measured distance, the mean slope, and the points between the clouds for the slope."""
    g = ws.Graph()
    here = g.input("here", ("batch", 2), dtype)
    there = g.input("there", ("batch", 2), dtype)
    w1, b1 = g.parameter("w1", (2, HIDDEN), dtype=dtype), g.parameter("b1", (HIDDEN,), dtype=dtype)
    w2, b2 = g.parameter("w2", (HIDDEN, HIDDEN), dtype=dtype), g.parameter("b2", (HIDDEN,), dtype=dtype)
    w3 = g.parameter("w3", (HIDDEN, 1), dtype=dtype)

    def critic(x: ws.Tensor) -> ws.Tensor:
        return ws.tanh(ws.tanh(x @ w1 + b1) @ w2 + b2) @ w3  # (batch, 1)

    mix = ws.random_uniform(g, (here.shape[0], 1), dtype=dtype)
    between = mix * here + (1.0 - mix) * there  # (batch, 2)
    # Each row's score depends on its own row only, so the gradient of the sum contains the gradient of every row.
    (slopes,) = ws.gradients(critic(between).sum(), [between])  # (batch, 2)
    norms = ((slopes * slopes).sum(axis=1) + 1e-12).sqrt()  # (batch,); the square root has no derivative at 0

    distance = critic(there).mean() - critic(here).mean()
    loss = PENALTY * ((norms - 1.0) ** 2).mean() - distance
    g.set_outputs({"loss": loss, "distance": distance, "slope": norms.mean(), "mix": mix})
    return g


def build(dtype: str = "float32", batch_size: int = BATCH, seed: int = 0) -> ws.Session:
    return ws.build_session(network(dtype), optimizer=ws.Adam(lr=1e-3), batch_size=batch_size, seed=seed)


def clouds(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """Points around the origin, and others around (3, 4)."""
    here, there = rng.normal(size=(2, rows, 2))
    return {"here": here.astype(np.float32), "there": (there + MOVED).astype(np.float32)}


def main(rounds: int = ROUNDS) -> float:
    """Trains the critic; returns the distance that it measures on new points."""
    rng = np.random.default_rng(0)
    session = build()
    print(f"peak memory {session.peak_bytes:,} bytes, {len(session.plan.kernels)} kernels a step")
    for number in range(1, rounds + 1):
        session.run(clouds(rng, UPDATES * BATCH))
        result = session.evaluate(clouds(rng, BATCH))
        print(f"round {number}: distance {result.distance:.3f}, slope {result.slope:.3f}")
    fresh = [session.evaluate(clouds(rng, BATCH)).distance for _ in range(20)]
    distance = float(np.mean(fresh))
    print(f"measured {distance:.3f}, exact {np.linalg.norm(MOVED):.3f}")
    return distance


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    main(options.parse_args().rounds)
