"""Cases that were wrong once, in their smallest form; a new finding is added here together with its fix."""

from __future__ import annotations

from typing import Any

from tests.fuzz.graphs import Program
from tests.fuzz.layers.layer import Layer
from tests.fuzz.network import Network
from tests.fuzz.programs import Op


def layer(kind: str, *bodies: tuple[Layer, ...], **options: Any) -> Layer:
    return Layer(kind, options, bodies)


def conv(each: int, kernel: int = 3, groups: int = 1, **options: Any) -> Layer:
    plain = {"stride": 1, "padding": 0, "dilation": 1, "bias": True}
    return Layer("conv", {"each": each, "kernel": [kernel, kernel], "groups": groups, **plain, **options})


def recurrent(cell: str, hidden: int, **options: Any) -> Layer:
    plain = {"layers": 1, "both": False, "batch_first": True, "last": False, "bias": True}
    return Layer("recurrent", {"cell": cell, "hidden": hidden, **plain, **options})


def network(shape: tuple[int | str, ...], *layers: Layer, **options: Any) -> Network:
    """Three steps, the second of them smaller, of up to four rows."""
    capacity = {e: 4 for e in shape if isinstance(e, str)}
    steps = tuple(dict.fromkeys(capacity, n) for n in (4, 3, 4))
    return Network(shape, layers, steps, **{"capacity": capacity, "seed": 1, **options})


def leaf(*shape: int | str, dtype: str = "float64", kind: str = "input", key: int = 1) -> Op:
    return Op("leaf", (), {"shape": list(shape), "kind": kind, "dtype": dtype, "below": 0, "key": key})


def extreme(*shape: int | str, key: int) -> Op:
    """Positive numbers of a magnitude that the key tells."""
    return leaf(*shape, dtype="float32", key=key)


def whole(dtype: str, *ops: Op) -> Program:
    """Over all corners of a dtype, some of them twice."""
    return Program("integers", (leaf(40, dtype=dtype), *ops), (len(ops),), "int32")


NETWORKS: dict[str, Network] = {
    "a branch of which a slice takes nothing": network(
        ("batch", 3),
        layer("branches", (), (layer("linear", outputs=31, bias=True),)),
        layer("one", axis=1, place=0),
    ),
    # channels per group above 16 and no multiple of 16
    **{
        f"grouped convolution of {n} channels a group": network(("batch", 2 * n, 4, 4), conv(n, groups=2), dtype=dtype)
        for n, dtype in ((17, "float64"), (18, "float32"), (24, "float64"), (31, "float32"))
    },
    # convolutions and pools together with ops that are not batch-first
    "convolution before an LSTM": network(
        ("batch", 2, 4, 3), conv(5), layer("merge", axis=2), layer("permute", order=[0, 2, 1]), recurrent("lstm", 3)
    ),
    "GRU before a convolution": network(
        ("batch", 5, 3), recurrent("gru", 4), layer("permute", order=[0, 2, 1]), conv(3, groups=2)
    ),
    "convolution before the batch is moved": network(
        ("batch", 3, 7), conv(1, 1, bias=False), layer("permute", order=[1, 2, 0])
    ),
    "depthwise convolution before a GRU": network(
        ("batch", 99, 2), conv(2, 1, 99, bias=False), recurrent("gru", 1), classes=3, loss="huber", dtype="float32"
    ),
    # attention that a product reads transposed
    "attention before a product over time": network(
        ("batch", 3, 5), layer("attention", causal=False), layer("permute", order=[0, 2, 1]), layer("linear", outputs=2)
    ),
    "attention before an LSTM over features": network(
        ("batch", 3, 5), layer("attention", causal=True), layer("permute", order=[0, 2, 1]), recurrent("lstm", 2)
    ),
    # norms before flatten
    "layer norm before flatten": network(
        ("batch", 4, 2), layer("linear", outputs=16), layer("layer norm", axes=1), layer("flatten"), classes=3
    ),
    "rms norm before flatten": network(
        ("batch", 4, 2), layer("linear", outputs=16), layer("rms norm"), layer("flatten"), classes=3
    ),
    "transformer block, layer norm, flatten": network(
        ("batch", 4, 16), layer("block", count=2, hidden=8), layer("layer norm", axes=1), layer("flatten"), classes=2
    ),
    # linear layers in a row
    "three linear layers": network(("batch", 8), layer("linears", widths=[8, 8, 2], bias=True)),
    "three linear layers of two": network(("batch", 2), layer("linears", widths=[2, 2, 1], bias=False)),
    "five linear layers": network(("batch", 31), layer("linears", widths=[16, 16, 5, 17, 3], bias=True)),
    # a pool that is the identity
    "max pool of 1 after a convolution": network(
        ("batch", 2, 5, 5), conv(3), layer("pool", by="max", window=[1, 1], stride=None, padding=0)
    ),
    # the gradients of a norm of one number are 0, and so is the sign of them
    "Lion over a layer norm of one number": network(("batch", 5, 1), layer("layer norm", axes=1), optimizer="lion"),
    "Lion over a linear layer before a norm of one number": network(
        (4, 3, 5), layer("linear", outputs=1, bias=True), layer("layer norm", axes=1), classes=17,
        loss="cross_entropy", optimizer="lion",
    ),
    # the gradient of a bias before a batch norm is 0 but for rounding, and must not be refused
    "maximum behind a batch norm": network(
        (4, 3, 20), conv(16, 1), layer("batch norm"), layer("reduce", axis=2, by="max"), classes=10, optimizer="adamw",
        verify=True, dtype="float32",
    ),
}  # fmt: skip

GRAPHS: dict[str, Program] = {
    # whole numbers wrap around, and the remainder of the smallest by -1 is 0
    **{
        f"remainder of {dtype} by {c}": whole(dtype, Op("mod", (0,), {"c": c}))
        for dtype in ("int32", "int64")
        for c in (-1, -(2**31), 2**31 - 1)
    },
    **{
        f"remainder of {dtype} by any other": Program(
            "integers", (leaf(90, dtype=dtype), leaf(90, dtype=dtype, key=2), Op("remainder", (0, 1))), (2,), "int32"
        )
        for dtype in ("int32", "int64", "uint8")
    },
    **{f"least of {dtype}": whole(dtype, Op("min", (0,), {"axis": 0})) for dtype in ("uint8", "int32", "int64")},
    "sign of the negative": whole("int32", Op("neg", (0,)), Op("sign", (1,))),
    "equal to its negative": whole("int64", Op("neg", (0,)), Op("equal", (0, 1))),
    "twice the smallest is 0": whole("int64", Op("add", (0, 0)), Op("sub", (1, 1)), Op("equal", (1, 2))),
    # channels per group above 16 and no multiple of 16, with derivatives
    "grouped convolution": Program(
        "floats",
        (leaf("time", 51, 1, 2), leaf(6, 17, 1, 2, kind="parameter"),
         Op("conv", (0, 1), {"groups": 3, "stride": 1, "padding": 1}), Op("permute", (2,), {"order": [3, 2, 0, 1]})),
        (3,), order=2,
    ),
    # two factors of 565 moved past 1e-29: what was left of 3e-33 became 0, and 1e21 infinite
    "factors that move one after another": Program(
        "extreme",
        (extreme("time", key=551692), extreme("time", key=434229), Op("mul", (0, 1)), Op("over", (2,), {"c": 0.00177}),
         Op("mul", (3, 0)), Op("mul", (4, 3)), Op("over", (5,), {"c": 6.51e-21}), Op("mul", (4, 1)),
         Op("mul", (4, 3)), Op("over", (5,), {"c": 34.1}), Op("under", (6,), {"c": 6.34e8})),
        (7, 8, 9, 10), "float32",
    ),
    # attention that a product reads transposed
    "attention read transposed": Program(
        "floats",
        (leaf("batch", 3, 5), Op("attention", (0, 0, 0), {"causal": False}), Op("permute", (1,), {"order": [0, 2, 1]}),
         leaf(3, 2, kind="parameter"), Op("linear", (2, 3), {"turned": False})),
        (4,), order=1,
    ),
}  # fmt: skip
