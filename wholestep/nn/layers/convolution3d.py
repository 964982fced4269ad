"""Convolutions of volumes and videos, (N, C, D, H, W)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.compiler.frontend.layers import convolution3d
from wholestep.compiler.frontend.layers.convolution3d import Triple
from wholestep.nn.layers.convolution import AnyConv, AnyConvTranspose

if TYPE_CHECKING:
    from wholestep.nn.module.regularizers import Regularizer


class Conv3d(AnyConv):
    """A convolution of volumes or videos (`ws.conv3d`); the arguments are those of `Conv2d`, a number or three each.

    Example: `ws.nn.Conv3d(3, 16, 3, padding=1)`.
    """

    axes, _function = "D, H, W", staticmethod(convolution3d.conv3d)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Triple,
        stride: Triple = 1,
        padding: Triple | str = 0,
        dilation: Triple = 1,
        groups: int = 1,
        bias: bool = True,
        init: object = None,
        dtype: object = "float32",
        *,
        weight_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
    ) -> None:
        how = (stride, padding, dilation, groups, bias, init, dtype)
        super().__init__(inputs, outputs, kernel, *how, weight_regularizer, activity_regularizer)


class ConvTranspose3d(AnyConvTranspose):
    """`ConvTranspose2d` for volumes (N, C, D, H, W).  Example: `ws.nn.ConvTranspose3d(8, 4, 2, stride=2)`."""

    axes, function = "D, H, W", staticmethod(convolution3d.conv_transpose3d)
