"""REINFORCE (Williams, 1992): a policy learns to cross a grid; the environment is plain NumPy.

The loss is hand-written: the log-likelihood of the chosen moves, weighted by their advantage.  Every round has another
number of moves, hence another batch size, but runs in one program.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

import wholestep as ws

SIDE = 5
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # up, down, left, right
WALKERS = 32
LIMIT = 40  # moves per episode
HIDDEN = 64
DISCOUNT = 0.95
ROUNDS = 60


def network(dtype: str = "float32") -> ws.Graph:
    """A policy over four moves and its weighted log-likelihood."""
    g = ws.Graph()
    places = g.input("places", ("moves", SIDE * SIDE), dtype)  # one-hot
    actions = g.input("actions", ("moves",), dtype="int32")
    advantages = g.input("advantages", ("moves",), dtype)
    w1, b1 = g.parameter("w1", (SIDE * SIDE, HIDDEN), dtype=dtype), g.parameter("b1", (HIDDEN,), dtype=dtype)
    w2, b2 = g.parameter("w2", (HIDDEN, 4), dtype=dtype), g.parameter("b2", (4,), dtype=dtype)
    logits = ws.relu(places @ w1 + b1) @ w2 + b2  # (moves, 4)
    surprise = ws.losses.cross_entropy(logits, actions, reduction="none")  # (moves,): -log p(action | place)
    g.set_outputs({"loss": (advantages * surprise).mean(), "logits": logits})
    return g


def build(dtype: str = "float32", seed: int = 0) -> ws.Session:
    capacity = {"moves": WALKERS * LIMIT}
    return ws.build_session(network(dtype), optimizer=ws.Adam(lr=1e-2), capacity=capacity, seed=seed)


@dataclass
class Episodes:
    """The moves of several walkers, one row per move, and the number of moves of each walker."""

    places: np.ndarray  # (moves, SIDE²)
    actions: np.ndarray  # (moves,)
    returns: np.ndarray  # (moves,): the discounted future reward
    lengths: np.ndarray  # (walkers,)

    def batch(self) -> dict[str, np.ndarray]:
        """The inputs of a step; the advantage of a move is its return minus the mean return."""
        advantages = (self.returns - self.returns.mean()) / (self.returns.std() + 1e-6)
        return {"places": self.places, "actions": self.actions, "advantages": advantages.astype(np.float32)}


def play(session: ws.Session, rng: np.random.Generator) -> Episodes:
    """Walks from the first corner until the last one, where the reward is 1."""
    at = np.zeros((WALKERS, 2), int)
    walking = np.arange(WALKERS)
    lengths = np.full(WALKERS, LIMIT)
    who, places, actions, times = [], [], [], []
    for time in range(LIMIT):
        seen = np.eye(SIDE * SIDE, dtype=np.float32)[at[walking, 0] * SIDE + at[walking, 1]]
        logits = session.predict(places=seen)
        # The argmax of logits plus Gumbel noise is a sample from their softmax.
        chosen = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1).astype(np.int32)
        at[walking] = np.clip(at[walking] + MOVES[chosen], 0, SIDE - 1)
        who.append(walking)
        places.append(seen)
        actions.append(chosen)
        times.append(np.full(len(walking), time))
        arrived = (at[walking] == SIDE - 1).all(axis=1)
        lengths[walking[arrived]] = time + 1
        walking = walking[~arrived]
        if not len(walking):
            break
    reached = (at == SIDE - 1).all(axis=1)
    owner = np.concatenate(who)
    returns = reached[owner] * DISCOUNT ** (lengths[owner] - np.concatenate(times) - 1)
    return Episodes(np.concatenate(places), np.concatenate(actions), returns, lengths)


def main(rounds: int = ROUNDS) -> float:
    """Trains the policy; returns the mean number of moves of its last walkers (the shortest path has 8)."""
    rng = np.random.default_rng(0)
    session = build()
    print(f"peak memory {session.peak_bytes:,} bytes, {len(session.plan.kernels)} kernels a step")
    mean = float(LIMIT)
    for number in range(1, rounds + 1):
        episodes = play(session, rng)
        loss = session.step(episodes.batch()).loss
        mean = float(episodes.lengths.mean())
        if number % 10 == 0 or number == 1:
            print(f"round {number:2}: {mean:4.1f} moves to the goal, loss {loss:+.3f}")
    return mean


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    main(options.parse_args().rounds)
