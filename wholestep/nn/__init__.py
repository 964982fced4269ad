"""Networks as objects: `Module`, and the layers people train with.  Names and shapes are PyTorch's."""

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
from wholestep.nn.recurrent import GRU, LSTM, RNN

# fmt: off
__all__ = [
    "Module", "Parameter", "Buffer", "Sequential", "Residual", "Lambda",
    "Linear", "Embedding", "Dropout", "Flatten",
    "Conv1d", "Conv2d", "MaxPool2d", "AvgPool2d", "GlobalAvgPool2d",
    "BatchNorm1d", "BatchNorm2d", "LayerNorm", "RMSNorm", "GroupNorm",
    "MultiHeadAttention", "TransformerBlock", "RNN", "LSTM", "GRU",
    "ReLU", "LeakyReLU", "ELU", "GELU", "SiLU", "Mish", "Softplus", "Hardswish", "SwiGLU", "Tanh", "Sigmoid", "Softmax",
]
