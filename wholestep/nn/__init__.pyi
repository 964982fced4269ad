# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api.md.
from wholestep.nn.module import Module as Module
from wholestep.nn.parameter import Parameter as Parameter, Buffer as Buffer
from wholestep.nn.containers import Sequential as Sequential, Residual as Residual
from wholestep.nn.activations import (
    Lambda as Lambda, ReLU as ReLU, LeakyReLU as LeakyReLU, ELU as ELU, GELU as GELU, SiLU as SiLU, Mish as Mish,
    Softplus as Softplus, Hardswish as Hardswish, SwiGLU as SwiGLU, Tanh as Tanh, Sigmoid as Sigmoid,
    Softmax as Softmax,
)
from wholestep.nn.precision import in_float32 as in_float32
from wholestep.nn.basic import Linear as Linear, Embedding as Embedding, Dropout as Dropout, Flatten as Flatten
from wholestep.nn.images import (
    Conv1d as Conv1d, Conv2d as Conv2d, MaxPool2d as MaxPool2d, AvgPool2d as AvgPool2d,
    GlobalAvgPool2d as GlobalAvgPool2d,
)
from wholestep.nn.batch_norm import BatchNorm1d as BatchNorm1d, BatchNorm2d as BatchNorm2d
from wholestep.nn.norms import LayerNorm as LayerNorm, RMSNorm as RMSNorm, GroupNorm as GroupNorm
from wholestep.nn.attention import MultiHeadAttention as MultiHeadAttention, TransformerBlock as TransformerBlock
from wholestep.nn.recurrent import RNN as RNN, LSTM as LSTM, GRU as GRU
