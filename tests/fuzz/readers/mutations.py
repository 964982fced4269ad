"""One small change to a file: to its bytes, or to a value of the tree that it holds."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

EVIL = (
    *(
        'x", system("id > pwned"), "',
        "1L; }), .queries",
        "a */ int main(void)",
        "../../other.safetensors",
        "/etc/passwd",
    ),
    *("", "\x00", "attention_grad", "exp", "sum", "float64", "panels", "state", "work", "$array", "é" * 300),
)
NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    7,
    16,
    255,
    10**7,
    2**31,
    2**63,
    -(2**63),
    10**40,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
)

Path = tuple[Any, ...]


def leaves(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Every place of a tree, inner ones too."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from leaves(value, (*path, key))


@dataclass(frozen=True)
class Tree:
    """A tree that is changed many times: its text, of which copies are read, and its places."""

    tree: Any
    text: str
    places: Sequence[Path]

    @classmethod
    def of(cls, tree: Any) -> Tree:
        return cls(tree, json.dumps(tree), [p for p in leaves(tree) if p])


def changed_tree(rng: random.Random, given: Any) -> tuple[Any, str]:
    """A copy of a tree with one change, and what it was."""
    given = given if isinstance(given, Tree) else Tree.of(given)
    tree, places = given.tree, given.places
    new = json.loads(given.text)  # a copy: a fifth of the time of `deepcopy`
    path = rng.choice(places)
    parent = new
    for key in path[:-1]:
        parent = parent[key]
    old = parent[path[-1]]
    kind = rng.randrange(8)
    if kind == 0:
        del parent[path[-1]]
        return new, f"{path} removed"
    if kind == 1 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(old))
        return new, f"{path} twice"
    if kind == 2 and isinstance(parent, list) and len(parent) > 1:
        other = rng.randrange(len(parent))
        parent[path[-1]], parent[other] = parent[other], parent[path[-1]]
        return new, f"{path} and {other} have changed places"
    if kind == 3:
        donor = rng.choice(places)
        value = tree
        for key in donor:
            value = value[key]
        parent[path[-1]] = copy.deepcopy(value)
        return new, f"{path} = {donor}"
    parent[path[-1]] = _other(rng, old)
    return new, f"{path} = {str(parent[path[-1]])[:60]!r}, it was {str(old)[:60]!r}"


def _other(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int) and rng.random() < 0.6:
        return rng.choice((value + 1, value - 1, 2 * value, value // 2, -value, value + 16, value * 1000 + 1))
    if isinstance(value, str) and rng.random() < 0.7:
        return rng.choice(EVIL)
    if isinstance(value, list) and value and rng.random() < 0.6:
        return value[: rng.randrange(len(value))]
    return rng.choice((*NUMBERS, *EVIL[:4], None, True, [], {}, [[]], {"dim": []}, {"dim": [[["batch"], 10**9]]}))


def changed_bytes(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """A copy of some bytes with one change, and what it was."""
    at, kind = rng.randrange(len(data) + 1), rng.randrange(6)
    if kind == 0 and at < len(data):
        bit = 1 << rng.randrange(8)
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], f"bit {bit} of byte {at}"
    if kind == 1:
        return data[:at], f"cut at {at}"
    if kind == 2:
        more = rng.randbytes(rng.randrange(1, 9))
        return data[:at] + more + data[at:], f"{more!r} at {at}"
    if kind == 3:
        to = rng.randrange(len(data) + 1)
        size = rng.randrange(1, 17)
        return data[:to] + data[at : at + size] + data[to + size :], f"{size} bytes from {at} to {to}"
    if kind == 4:
        size = rng.randrange(1, 33)
        return data[:at] + data[at + size :], f"{size} bytes away at {at}"
    more = rng.randbytes(4)
    return data[:at] + more + data[at + 4 :], f"{more!r} over {at}"
