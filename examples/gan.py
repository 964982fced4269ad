"""A generative adversarial network (arXiv:1406.2661): two networks and two optimizers in one compiled step.

The generator learns to imitate points around a circle.  Both networks are updated together, from the weights at the
start of the step, and the noise is drawn inside the step, so its only input is real data.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np

import wholestep as ws

NOISE = 8
HIDDEN = 64
BATCH = 256
ROUNDS = 10
UPDATES = 300  # per round

Layers = list[tuple[ws.Tensor, ws.Tensor]]


def declare(g: ws.Graph, player: str, widths: tuple[int, ...], dtype: str) -> Layers:
    """The parameters of a perceptron: `player.w0`, `player.b0`, ..."""
    with g.scope(player):
        return [
            (g.parameter(f"w{i}", (m, n), dtype=dtype), g.parameter(f"b{i}", (n,), dtype=dtype))
            for i, (m, n) in enumerate(pairwise(widths))
        ]


def forward(layers: Layers, x: ws.Tensor) -> ws.Tensor:
    *hidden, (last_w, last_b) = layers
    for w, b in hidden:
        x = ws.relu(x @ w + b)  # (batch, hidden)
    return x @ last_w + last_b  # (batch, outputs)


def flat(layers: Layers) -> list[ws.Tensor]:
    return [tensor for layer in layers for tensor in layer]


def adversaries(dtype: str = "float32") -> ws.Step:
    """One step of both players: returns their losses, the generated points, and the noise that they came from."""

    @ws.step(inputs={"real": ws.Spec(("batch", 2), dtype)})
    def play(g: ws.Graph, real: ws.Tensor) -> dict[str, ws.Tensor]:
        generator = declare(g, "generator", (NOISE, HIDDEN, HIDDEN, 2), dtype)
        judge = declare(g, "judge", (2, HIDDEN, HIDDEN, 1), dtype)
        noise = ws.random_normal(g, (real.shape[0], NOISE), dtype=dtype)
        made = forward(generator, noise)  # (batch, 2)

        bce = ws.losses.binary_cross_entropy_with_logits_loss
        # The judge treats generated points as constants.  (Its gradients are only for its own parameters in any case.)
        judge_loss = bce(forward(judge, real), 1.0) + bce(forward(judge, ws.stop_gradient(made)), 0.0)
        # The non-saturating loss: maximise the probability of "real" instead of minimising that of "generated".
        generator_loss = bce(forward(judge, made), 1.0)

        for name, layers, loss in (("judge", judge, judge_loss), ("generator", generator, generator_loss)):
            params = flat(layers)
            ws.Adam(lr=1e-3, betas=(0.5, 0.999), name=name).update(g, params, ws.gradients(loss, params))
        return {"judge_loss": judge_loss, "generator_loss": generator_loss, "made": made, "noise": noise}

    return play


def build(dtype: str = "float32", batch_size: int = BATCH, seed: int = 0) -> ws.Session:
    return ws.build_session(adversaries(dtype), batch_size=batch_size, seed=seed)


def circle(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Points near the circle of radius 2."""
    angle = rng.uniform(0, 2 * np.pi, rows)
    radius = rng.normal(2.0, 0.05, rows)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)


def covered(points: np.ndarray, sectors: int = 16) -> float:
    """The fraction of the circle's sectors with at least one point within 0.4 of the circle."""
    near = points[np.abs(np.linalg.norm(points, axis=1) - 2.0) < 0.4]
    angles = np.arctan2(near[:, 1], near[:, 0])
    return len(np.unique(((angles + np.pi) / (2 * np.pi) * sectors).astype(int) % sectors)) / sectors


def main(rounds: int = ROUNDS) -> float:
    """Trains both players; returns the fraction of the circle that the generator covers."""
    rng = np.random.default_rng(0)
    session = build()
    print(f"peak memory {session.peak_bytes:,} bytes, {len(session.plan.kernels)} kernels a step")
    share = 0.0
    for number in range(1, rounds + 1):
        session.run(real=circle(rng, UPDATES * BATCH))
        result = session.step(real=circle(rng, BATCH))
        share = covered(result.made)
        radius = np.linalg.norm(result.made, axis=1)
        print(
            f"round {number:2}: judge {result.judge_loss:.3f}, generator {result.generator_loss:.3f}, "
            f"radius {radius.mean():.2f} ± {radius.std():.2f}, {share:.0%} of the circle"
        )
    return share


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    main(options.parse_args().rounds)
