"""Functions that are expressions over others, ours and torch's: images of another size, volumes, pools, padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import wholestep as ws

Row = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]

_RNG = np.random.default_rng(13)


def normal(*shape: int) -> Any:
    return _RNG.normal(size=shape)


def both(name: str, *arrays: Any, **options: Any) -> Row:
    """A function that both packages have under one name."""
    ours, theirs = getattr(ws, name), getattr(F, name)
    return lambda *xs: ours(*xs, **options), lambda *xs: theirs(*xs, **options), arrays


def keras_same(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.pad(x, (0, 1, 1, 1)), w, stride=2)  # 8 columns: (0, 1); 7 rows: (1, 1)


SIGNALS, IMAGES, VOLUMES = normal(2, 3, 9), normal(2, 4, 7, 8), normal(2, 2, 5, 6, 4)

CONVOLUTIONS: dict[str, Row] = {
    "conv_transpose2d": both("conv_transpose2d", IMAGES, normal(4, 3, 3, 2), normal(3)),
    "conv_transpose2d, every option": both(
        "conv_transpose2d", IMAGES, normal(4, 3, 3, 3), normal(6), stride=(2, 3), padding=(1, 2),
        output_padding=(1, 2), dilation=(2, 1), groups=2,
    ),
    "conv_transpose2d, output padding by dilation": both(
        "conv_transpose2d", IMAGES, normal(4, 3, 2, 3), normal(3), stride=(1, 2), padding=(0, 1), output_padding=(3, 3),
        dilation=(4, 4),
    ),
    "conv_transpose1d, output padding by dilation": both(
        "conv_transpose1d", SIGNALS, normal(3, 4, 2), normal(4), stride=1, padding=2, output_padding=1, dilation=2
    ),
    "conv_transpose3d, output padding by dilation": both(
        "conv_transpose3d", normal(2, 2, 3, 2, 3), normal(2, 3, 2, 2, 2), normal(3), stride=(1, 2, 1),
        padding=(1, 0, 0), output_padding=(2, 1, 2), dilation=(3, 1, 3),
    ),
    "conv_transpose2d, doubled": both("conv_transpose2d", IMAGES, normal(4, 5, 4, 4), stride=2, padding=1),
    "conv_transpose2d, same": (
        lambda x, w: ws.conv_transpose2d(x, w, stride=2, padding="same"),
        lambda x, w: F.conv_transpose2d(x, w, stride=2)[:, :, :-1, :-1], (IMAGES, normal(4, 2, 3, 3)),
    ),
    "conv_transpose1d": both(
        "conv_transpose1d", SIGNALS, normal(3, 4, 4), normal(4), stride=3, padding=1, output_padding=2
    ),
    "conv3d": both("conv3d", VOLUMES, normal(3, 2, 3, 3, 2), normal(3), padding=1),
    "conv3d, every option": both(
        "conv3d", normal(2, 4, 7, 6, 5), normal(6, 2, 3, 2, 3), stride=(2, 1, 2), padding=(1, 0, 2), dilation=(2, 1, 1),
        groups=2,
    ),
    "conv3d, images alone": both("conv3d", VOLUMES, normal(3, 2, 1, 3, 3), padding="same"),
    "conv_transpose3d": both(
        "conv_transpose3d", normal(2, 2, 3, 2, 3), normal(2, 3, 3, 2, 3), normal(3), stride=2, padding=1,
        output_padding=1,
    ),
    "conv2d, same with a stride": (
        lambda x, w: ws.conv2d(x, w, stride=2, padding="same"), keras_same, (IMAGES, normal(5, 4, 3, 3)),
    ),
}  # fmt: skip

POOLS: dict[str, Row] = {
    "max_pool1d": (lambda x: ws.max_pool1d(x, 3, 2, 1), lambda x: F.max_pool1d(x, 3, 2, 1), (SIGNALS,)),
    "max_pool2d, ceil_mode": (
        lambda x: ws.max_pool2d(x, 3, 2, ceil_mode=True), lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (IMAGES,),
    ),
    "max_pool2d, ceil_mode, far outside": (
        lambda x: ws.max_pool2d(x, (3, 5), (3, 4), (1, 1), ceil_mode=True),
        lambda x: F.max_pool2d(x, (3, 5), (3, 4), (1, 1), ceil_mode=True), (IMAGES,),
    ),
    "max_pool2d, same": (
        lambda x: ws.max_pool2d(x, 3, 2, "same"),
        lambda x: F.max_pool2d(F.pad(x, (0, 1, 1, 1), value=-torch.inf), 3, 2), (IMAGES,),
    ),
    "max_pool3d": (
        lambda x: ws.max_pool3d(x, (2, 3, 2), (2, 2, 1), (1, 1, 0)),
        lambda x: F.max_pool3d(x, (2, 3, 2), (2, 2, 1), (1, 1, 0)), (VOLUMES,),
    ),
    "avg_pool1d": (lambda x: ws.avg_pool1d(x, 2, 3, 1), lambda x: F.avg_pool1d(x, 2, 3, 1), (SIGNALS,)),
    "avg_pool2d, padding not counted": (
        lambda x: ws.avg_pool2d(x, 3, 2, 1, count_padding=False),
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (IMAGES,),
    ),
    "avg_pool2d, ceil_mode": (
        lambda x: ws.avg_pool2d(x, (3, 2), (3, 3), 1, ceil_mode=True),
        lambda x: F.avg_pool2d(x, (3, 2), (3, 3), 1, ceil_mode=True), (IMAGES,),
    ),
    "avg_pool2d, same": (
        lambda x: ws.avg_pool2d(x, 2, 2, "same"),
        lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False), (IMAGES,),
    ),
    "avg_pool3d": (
        lambda x: ws.avg_pool3d(x, (2, 3, 2), 2, (1, 1, 0), count_padding=False),
        lambda x: F.avg_pool3d(x, (2, 3, 2), 2, (1, 1, 0), count_include_pad=False), (VOLUMES,),
    ),
    **{
        f"{name}, {size}": (
            lambda x, n=name, s=size: getattr(ws, n)(x, s), lambda x, n=name, s=size: getattr(F, n)(x, s), (IMAGES,)
        )
        for name in ("adaptive_avg_pool2d", "adaptive_max_pool2d") for size in ((3, 5), (7, 4), (9, 3), (1, 1))
    },
    "adaptive_avg_pool1d": (
        lambda x: ws.adaptive_avg_pool1d(x, 4), lambda x: F.adaptive_avg_pool1d(x, 4), (SIGNALS,)
    ),
    "adaptive_max_pool1d": (
        lambda x: ws.adaptive_max_pool1d(x, 3), lambda x: F.adaptive_max_pool1d(x, 3), (SIGNALS,)
    ),
    "global pools": (
        lambda x, s, v: ws.concat([
            ws.global_max_pool2d(x), ws.global_avg_pool1d(s), ws.global_max_pool1d(s), ws.global_avg_pool3d(v),
        ], 1),
        lambda x, s, v: torch.cat([x.amax((2, 3)), s.mean(2), s.amax(2), v.mean((2, 3, 4))], 1),
        (IMAGES, SIGNALS, VOLUMES),
    ),
}  # fmt: skip


def resized(x: Any, **options: Any) -> Row:
    theirs = {"scale_factor" if k == "scale" else k: v for k, v in options.items()}
    return lambda t: ws.interpolate(t, **options), lambda t: F.interpolate(t, **theirs), (x,)


SIZES: dict[str, Row] = {
    "nearest, doubled": resized(IMAGES, scale=2),
    "nearest, each axis": resized(IMAGES, size=(14, 24)),
    "nearest, uneven": resized(IMAGES, size=(5, 11)),
    "nearest, scale": resized(SIGNALS, scale=1.7),
    "nearest, volumes": resized(VOLUMES, scale=(2, 1, 3)),
    "linear": resized(SIGNALS, scale=2.5, mode="linear"),
    "bilinear": resized(IMAGES, scale=2, mode="bilinear"),
    "bilinear, smaller": resized(IMAGES, size=(3, 5), mode="bilinear"),
    "bilinear, corners": resized(IMAGES, size=(10, 4), mode="bilinear", align_corners=True),
    "trilinear": resized(VOLUMES, scale=2, mode="trilinear"),
    "bicubic": resized(IMAGES, scale=2, mode="bicubic"),
    "bicubic, corners": resized(IMAGES, size=(5, 11), mode="bicubic", align_corners=True),
    "area": resized(IMAGES, size=(3, 5), mode="area"),
    "pixel_shuffle": (lambda x: ws.pixel_shuffle(x, 2), lambda x: F.pixel_shuffle(x, 2), (normal(2, 8, 3, 4),)),
    "pixel_unshuffle": (lambda x: ws.pixel_unshuffle(x, 2), lambda x: F.pixel_unshuffle(x, 2), (normal(2, 3, 4, 6),)),
    **{
        f"pad, {mode}": (
            lambda x, m=mode: ws.pad(x, [(0, 0), (0, 0), (2, 0), (1, 3)], mode=m),
            lambda x, m=mode: F.pad(x, (1, 3, 2, 0), mode=m), (IMAGES,),
        )
        for mode in ("reflect", "replicate", "circular")
    },
}  # fmt: skip

TIED = np.round(normal(3, 4, 7))
WHERE = _RNG.integers(0, 9, (2, 3, 4)).astype(np.int32)


def largest(x: Any, k: int, axis: int) -> Any:
    values, indices = ws.topk(x, k, axis)
    return values * (1.0 + indices.astype(x.dtype))


def torch_largest(x: torch.Tensor, k: int, axis: int) -> torch.Tensor:
    values, indices = x.topk(k, axis)
    return values * (1.0 + indices)


SELECTION: dict[str, Row] = {
    "take_along_axis": (
        lambda x, i: ws.take_along_axis(x, i, 2), lambda x, i: x.gather(2, i.long()), (SIGNALS, WHERE)
    ),
    "take_along_axis, the same for all": (
        lambda x, i: ws.take_along_axis(x, i[:, :1], 2), lambda x, i: x.gather(2, i[:, :1].expand(-1, 3, -1).long()),
        (SIGNALS, WHERE),
    ),
    "take_along_axis, a long axis": (
        lambda x, i: ws.take_along_axis(x, i, 1), lambda x, i: x.gather(1, i.long()),
        (normal(2, 600), _RNG.integers(0, 600, (2, 7))),
    ),
    "sort, a long axis": (lambda x: ws.sort(x), lambda x: x.sort(-1).values, (normal(2, 513),)),
    "columns by a list": (lambda x: x[:, [0, 2], 1:], lambda x: x[:, [0, 2], 1:], (SIGNALS,)),
    "columns by a tensor": (
        lambda x, i: x[..., i[0, 0]] * 2.0, lambda x, i: x[..., i[0, 0].long()] * 2.0, (SIGNALS, WHERE)
    ),
    "one of each row": (
        lambda x, i: x[ws.arange(3), i[0, 0, :3] % 4], lambda x, i: x[torch.arange(3), (i[0, 0, :3] % 4).long()],
        (TIED, WHERE),
    ),
    "pairs": (
        lambda x, i: x[1, [0, -1, 3], np.array([6, 2, 2])], lambda x, i: x[1, [0, -1, 3], torch.tensor([6, 2, 2])],
        (TIED, WHERE),
    ),
    "sort": (lambda x: ws.sort(x), lambda x: x.sort(-1).values, (SIGNALS,)),
    "sort, ties, the middle, descending": (
        lambda x: ws.sort(x, 1, descending=True), lambda x: x.sort(dim=1, descending=True, stable=True).values, (TIED,)
    ),
    "argsort, ties": (
        lambda x: ws.argsort(x).astype(x.dtype) * x, lambda x: x.argsort(dim=-1, stable=True).to(x.dtype) * x, (TIED,)
    ),
    "topk": (lambda x: largest(x, 3, -1), lambda x: torch_largest(x, 3, -1), (SIGNALS,)),
    "put, sorted, summed": (
        lambda x, y: ws.put_along_axis(x, ws.argsort(y)[:, :, :4], y[:, :, :4], 2) * ws.cumsum(y, 2, reverse=True)
        + ws.put_along_axis(x, ws.argsort(y), y, 2, reduce="max") + ws.prod(x, 1, keepdims=True),
        lambda x, y: x.scatter(2, y.argsort(-1)[:, :, :4], y[:, :, :4]) * y.flip(2).cumsum(2).flip(2)
        + x.scatter_reduce(2, y.argsort(-1), y, "amax") + x.prod(1, keepdim=True),
        (SIGNALS, normal(2, 3, 9)),
    ),
    "index_put, index_copy, cumprod": (
        lambda x, y: ws.index_put(x, (np.array([1, 0]), np.array([2, 2])), y[0, :2]) * ws.cumprod(y, 1)
        + ws.index_copy(x, 2, np.array([3, 3]), y[:, :, :2]),
        lambda x, y: x.index_put((torch.tensor([1, 0]), torch.tensor([2, 2])), y[0, :2]) * y.cumprod(1)
        + x.index_copy(2, torch.tensor([3]), y[:, :, 1:2]),
        (SIGNALS, normal(2, 3, 9)),
    ),
    "topk, many, the first axis": (lambda x: largest(x, 6, 0), lambda x: torch_largest(x, 6, 0), (normal(8, 5),)),
}  # fmt: skip

ORDER = np.where(normal(5, 6) > 0, 1.0, -1.0)
LOSSES: dict[str, Row] = {
    **{
        f"triplet_margin_loss, {options}": (
            lambda a, b, c, o=options: ws.losses.triplet_margin_loss(a, b, c, **o),
            lambda a, b, c, o=options: F.triplet_margin_loss(a, b, c, **o), (normal(5, 6), normal(5, 6), normal(5, 6)),
        )
        for options in ({}, {"p": 1, "margin": 0.3}, {"swap": True, "reduction": "none"})
    },
    "margin_ranking_loss": (
        lambda a, b: ws.losses.margin_ranking_loss(a, b, ORDER, 0.2),
        lambda a, b: F.margin_ranking_loss(a, b, torch.tensor(ORDER), 0.2), (normal(5, 6), normal(5, 6)),
    ),
}  # fmt: skip

CATALOGUE = {
    "convolutions": CONVOLUTIONS, "pools": POOLS, "sizes": SIZES, "selection": SELECTION, "losses": LOSSES,
}  # fmt: skip
