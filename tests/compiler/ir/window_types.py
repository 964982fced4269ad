"""Rows of test_types_of_ops.py for convolutions and pools: types that fit, and the errors for types that do not."""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import TensorType, as_shape, float32, float64, int32, uint8
from wholestep.errors import DTypeError, OptionError, ShapeError


def t(*shape: object, dtype=float32) -> TensorType:
    return TensorType(as_shape(shape), dtype)


CONV = at.ConvAttrs((2, 1), (1, 0), (1, 0), (1, 2), 1, False)
CONV_SIZE = at.ConvGradAttrs((2, 1), (1, 0), (1, 0), (1, 2), 1, False, (6, 7))
CONV_KERNEL = at.ConvGradAttrs((2, 1), (1, 0), (1, 0), (1, 2), 1, False, (3, 2))
POOL = at.PoolAttrs((2, 3), (2, 3), (0, 0), (0, 0), False)
SPREAD = at.PoolGradAttrs((2, 3), (2, 3), (0, 0), (0, 0), False, (6, 7))
IMAGES, KERNEL, MAPS = t("batch", 4, 6, 7), t(5, 4, 3, 2), t("batch", 5, 3, 5)
POOLED, PLACES = t("batch", 4, 3, 2), t("batch", 4, 3, 2, dtype=uint8)
THROUGH_SIZE = at.PooledConvAttrs((1, 1), (1, 1), (2, 2), (6, 8), (6, 8))
THROUGH_KERNEL = at.PooledConvAttrs((1, 1), (1, 1), (2, 2), (6, 8), (3, 3), parts=7)
CELLS, CELL_PLACES = t("batch", 3, 4, 5), t("batch", 3, 4, 5, dtype=uint8)

GOOD = {
    "conv2d": (CONV, (IMAGES, KERNEL), MAPS),
    "conv2d_grad_input": (CONV_SIZE, (MAPS, KERNEL), IMAGES),
    "conv2d_grad_weight": (CONV_KERNEL, (IMAGES, MAPS), KERNEL),
    "max_pool2d": (POOL, (IMAGES,), POOLED),
    "max_pool2d_index": (POOL, (IMAGES,), PLACES),
    "max_pool2d_grad": (SPREAD, (POOLED, PLACES), IMAGES),
    "max_pool2d_pick": (POOL, (IMAGES, PLACES), POOLED),
    "pooled_grad_weight": (THROUGH_KERNEL, (t("batch", 6, 8, 2), CELLS, CELL_PLACES), t(7, 5, 3, 3, 2)),
    "pooled_grad_input": (THROUGH_SIZE, (CELLS, CELL_PLACES, t(5, 3, 3, 2)), t("batch", 6, 8, 2)),
}
BAD = {
    "conv2d": [
        (
            CONV,
            (t(4, 6, 7), KERNEL),
            ShapeError,
            r"conv2d needs an input of shape \(N, C, H, W\); received \(4, 6, 7\)",
        ),
        (CONV, (IMAGES, t(5, 3, 3, 2)), ShapeError, r"has 4 channels, but the weight \(5, 3, 3, 2\) takes 3; make it"),
        (CONV, (IMAGES, t(5, 4, 9, 2)), ShapeError, "a window of 9 x 3 is larger than the image of 6 x 7 with its"),
        (CONV, (t(1, 4, "batch", 7), KERNEL), ShapeError, "height and width must be integers known at compile time"),
        (CONV, (IMAGES, t(5, 4, 3, 2, dtype=float64)), DTypeError, "conv2d needs equal dtypes"),
        (replace(CONV, groups=3), (IMAGES, KERNEL), ShapeError, "groups=3 must divide the 4 channels of the input and"),
        (replace(CONV, groups=0), (IMAGES, KERNEL), OptionError, "groups must be at least 1; received 0"),
        (replace(CONV, stride=(0, 1)), (IMAGES, KERNEL), OptionError, r"stride must be at least 1; received \(0, 1\)"),
        (replace(CONV, low=(-1, 0)), (IMAGES, KERNEL), OptionError, "padding must not be negative"),
    ],
    "conv2d_grad_input": [(CONV_SIZE, (t("batch", 5, 3, 4), KERNEL), ShapeError, "conv2d_grad_input: the gradient of")],
    "conv2d_grad_weight": [(CONV_KERNEL, (IMAGES, t("batch", 5, 2, 5)), ShapeError, "grad_weight: the gradient of")],
    "max_pool2d": [
        (POOL, (t(4, 6, 7),), ShapeError, r"max_pool2d needs an input of shape \(N, C, H, W\)"),
        (POOL, (t(1, 4, 1, 7),), ShapeError, "a window of 2 x 3 is larger than the image of 1 x 7"),
        (replace(POOL, low=(2, 0)), (IMAGES,), OptionError, "is more than half of the window"),
    ],
    "max_pool2d_index": [(POOL, (t(1, 4, 1, 7),), ShapeError, "a window of 2 x 3 is larger than the image")],
    "max_pool2d_grad": [
        (SPREAD, (POOLED, t("batch", 4, 3, 2, dtype=int32)), DTypeError, "needs the positions of the maxima as uint8"),
        (SPREAD, (t(1, 4, 3, 3), t(1, 4, 3, 3, dtype=uint8)), ShapeError, "max_pool2d_grad: the gradient of"),
    ],
    "max_pool2d_pick": [(POOL, (IMAGES, POOLED), DTypeError, "max_pool2d_pick needs the positions of the maxima")],
    "pooled_grad_weight": [(THROUGH_KERNEL, (t("batch", 6, 9, 2), CELLS, CELL_PLACES), ShapeError, "the gradient of")],
    "pooled_grad_input": [(THROUGH_SIZE, (CELLS, CELLS, t(5, 3, 3, 2)), DTypeError, "the positions of the maxima")],
}
