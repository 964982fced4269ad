"""Networks as objects: `Module`, and the layers people train with.  Names and shapes are PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.lazy import postponed

if TYPE_CHECKING:
    from wholestep.nn.activations import (
        ELU,
        GELU,
        Hardswish,
        Lambda,
        LeakyReLU,
        Mish,
        ReLU,
        Sigmoid,
        SiLU,
        Softmax,
        Softplus,
        SwiGLU,
        Tanh,
    )
    from wholestep.nn.attention import MultiHeadAttention, TransformerBlock
    from wholestep.nn.basic import Dropout, Embedding, Flatten, Linear
    from wholestep.nn.batch_norm import BatchNorm1d, BatchNorm2d
    from wholestep.nn.containers import Residual, Sequential
    from wholestep.nn.images import AvgPool2d, Conv1d, Conv2d, GlobalAvgPool2d, MaxPool2d
    from wholestep.nn.module import Module
    from wholestep.nn.norms import GroupNorm, LayerNorm, RMSNorm
    from wholestep.nn.parameter import Buffer, Parameter
    from wholestep.nn.precision import in_float32
    from wholestep.nn.recurrent import GRU, LSTM, RNN

_HOMES = {
    "activations": [
        "ELU",
        "GELU",
        "Hardswish",
        "Lambda",
        "LeakyReLU",
        "Mish",
        "ReLU",
        "Sigmoid",
        "SiLU",
        "Softmax",
        "Softplus",
        "SwiGLU",
        "Tanh",
    ],
    "attention": ["MultiHeadAttention", "TransformerBlock"],
    "basic": ["Dropout", "Embedding", "Flatten", "Linear"],
    "batch_norm": ["BatchNorm1d", "BatchNorm2d"],
    "containers": ["Residual", "Sequential"],
    "images": ["AvgPool2d", "Conv1d", "Conv2d", "GlobalAvgPool2d", "MaxPool2d"],
    "module": ["Module"],
    "norms": ["GroupNorm", "LayerNorm", "RMSNorm"],
    "parameter": ["Buffer", "Parameter"],
    "precision": ["in_float32"],
    "recurrent": ["GRU", "LSTM", "RNN"],
}
if not TYPE_CHECKING:  # a checker sees the imports above
    __getattr__ = postponed(__name__, _HOMES)

# fmt: off
__all__ = [
    "Module", "Parameter", "Buffer", "Sequential", "Residual", "Lambda", "in_float32",
    "Linear", "Embedding", "Dropout", "Flatten",
    "Conv1d", "Conv2d", "MaxPool2d", "AvgPool2d", "GlobalAvgPool2d",
    "BatchNorm1d", "BatchNorm2d", "LayerNorm", "RMSNorm", "GroupNorm",
    "MultiHeadAttention", "TransformerBlock", "RNN", "LSTM", "GRU",
    "ReLU", "LeakyReLU", "ELU", "GELU", "SiLU", "Mish", "Softplus", "Hardswish", "SwiGLU", "Tanh", "Sigmoid", "Softmax",
]
