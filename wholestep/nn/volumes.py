"""Convolutions of volumes and videos, (N, C, D, H, W)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.compiler.frontend import volumes
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.volumes import Triple
from wholestep.nn.basic import regularize
from wholestep.nn.images import AnyConv, AnyConvTranspose, each_axis

if TYPE_CHECKING:
    from wholestep.nn.regularizers import Regularizer


class Conv3d(AnyConv):
    """A convolution of volumes or videos (`ws.conv3d`); the arguments are those of `Conv2d`, a number or three each.

    Example: `ws.nn.Conv3d(3, 16, 3, padding=1)`.
    """

    axes = "D, H, W"

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
        super().__init__(inputs, outputs, each_axis(kernel, 3), groups, bias, init, dtype)
        regularize(self, weight_regularizer, activity_regularizer)
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return volumes.conv3d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ConvTranspose3d(AnyConvTranspose):
    """`ConvTranspose2d` for volumes (N, C, D, H, W).  Example: `ws.nn.ConvTranspose3d(8, 4, 2, stride=2)`."""

    axes, axis_count, function = "D, H, W", 3, staticmethod(volumes.conv_transpose3d)
