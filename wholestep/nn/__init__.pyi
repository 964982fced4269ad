# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.
from wholestep.nn.module.module import Module as Module
from wholestep.nn.module.parameter import Parameter as Parameter, Buffer as Buffer
from wholestep.nn.layers.containers import Sequential as Sequential, Residual as Residual
from wholestep.nn.layers.containers import Ensemble as Ensemble
from wholestep.nn.layers.activations import (
    Lambda as Lambda, ReLU as ReLU, LeakyReLU as LeakyReLU, ELU as ELU, GELU as GELU, SiLU as SiLU, Mish as Mish,
    Softplus as Softplus, Hardswish as Hardswish, SwiGLU as SwiGLU, Tanh as Tanh, Sigmoid as Sigmoid,
    Softmax as Softmax,
)
from wholestep.nn.module.trace import functional_call as functional_call
from wholestep.nn.layers.containers import in_float32 as in_float32
from wholestep.nn.module.regularizers import L1 as L1, L2 as L2, L1L2 as L1L2
from wholestep.nn.layers.task_weights import GradNorm as GradNorm, UncertaintyWeights as UncertaintyWeights
from wholestep.nn.layers.linear import (
    CosineLinear as CosineLinear, Linear as Linear, Embedding as Embedding, Dropout as Dropout,
    Dropout1d as Dropout1d, Dropout2d as Dropout2d, Dropout3d as Dropout3d, DropPath as DropPath, Flatten as Flatten,
)
from wholestep.nn.layers.convolution import (
    Conv1d as Conv1d, Conv2d as Conv2d, Conv3d as Conv3d, ConvTranspose1d as ConvTranspose1d,
    ConvTranspose2d as ConvTranspose2d, ConvTranspose3d as ConvTranspose3d, SeparableConv2d as SeparableConv2d,
)
from wholestep.nn.layers.pooling import (
    MaxPool1d as MaxPool1d, MaxPool2d as MaxPool2d, MaxPool3d as MaxPool3d, AvgPool1d as AvgPool1d,
    AvgPool2d as AvgPool2d, AvgPool3d as AvgPool3d, AdaptiveAvgPool1d as AdaptiveAvgPool1d,
    AdaptiveAvgPool2d as AdaptiveAvgPool2d, AdaptiveMaxPool1d as AdaptiveMaxPool1d,
    AdaptiveMaxPool2d as AdaptiveMaxPool2d, GlobalAvgPool1d as GlobalAvgPool1d, GlobalAvgPool2d as GlobalAvgPool2d,
    GlobalAvgPool3d as GlobalAvgPool3d, GlobalMaxPool1d as GlobalMaxPool1d, GlobalMaxPool2d as GlobalMaxPool2d,
    SequencePool as SequencePool,
)
from wholestep.nn.layers.resize import (
    Upsample as Upsample, PixelShuffle as PixelShuffle, PixelUnshuffle as PixelUnshuffle, ZeroPad1d as ZeroPad1d,
    ZeroPad2d as ZeroPad2d, ReflectionPad1d as ReflectionPad1d, ReflectionPad2d as ReflectionPad2d,
    ReplicationPad1d as ReplicationPad1d, ReplicationPad2d as ReplicationPad2d, CircularPad1d as CircularPad1d,
    CircularPad2d as CircularPad2d,
)
from wholestep.nn.layers.normalization import (
    BatchNorm1d as BatchNorm1d, BatchNorm2d as BatchNorm2d, BatchNorm3d as BatchNorm3d,
)
from wholestep.nn.layers.normalization import (
    LayerNorm as LayerNorm, RMSNorm as RMSNorm, GroupNorm as GroupNorm, InstanceNorm1d as InstanceNorm1d,
    InstanceNorm2d as InstanceNorm2d, InstanceNorm3d as InstanceNorm3d,
)
from wholestep.nn.layers.attention import MultiHeadAttention as MultiHeadAttention
from wholestep.nn.layers.transformer import (
    TransformerBlock as TransformerBlock, TransformerDecoderBlock as TransformerDecoderBlock,
    Transformer as Transformer,
)
from wholestep.nn.layers.recurrent import RNN as RNN, LSTM as LSTM, GRU as GRU
from wholestep.nn.layers.recurrent_cells import RNNCell as RNNCell, LSTMCell as LSTMCell, GRUCell as GRUCell
from wholestep.nn.layers.recurrent import ConvLSTM2d as ConvLSTM2d
from wholestep.nn.wrappers.lora_adapters import lora as lora, Adapters as Adapters
from wholestep.nn.wrappers.soups import soup as soup
from wholestep.nn.wrappers.quantization import fake_quantize as fake_quantize, quantize as quantize
from wholestep.nn.wrappers.weight_norms import weight_norm as weight_norm, spectral_norm as spectral_norm
from wholestep.nn.layers.containers import (
    Identity as Identity, ModuleDict as ModuleDict, ModuleList as ModuleList, Unflatten as Unflatten,
)
from wholestep.nn.layers.activations import (
    CELU as CELU, GLU as GLU, Hardshrink as Hardshrink, Hardsigmoid as Hardsigmoid, Hardtanh as Hardtanh,
    LogSigmoid as LogSigmoid, LogSoftmax as LogSoftmax, PReLU as PReLU, ReLU6 as ReLU6, SELU as SELU,
    Softmin as Softmin, Softshrink as Softshrink, Softsign as Softsign, Tanhshrink as Tanhshrink,
    Threshold as Threshold,
)
from wholestep.nn.layers.torch_layers import (
    AdaptiveAvgPool3d as AdaptiveAvgPool3d, AdaptiveMaxPool3d as AdaptiveMaxPool3d, Bilinear as Bilinear,
    ChannelShuffle as ChannelShuffle, CosineSimilarity as CosineSimilarity, EmbeddingBag as EmbeddingBag, Fold as Fold,
    LocalResponseNorm as LocalResponseNorm, MaxUnpool2d as MaxUnpool2d, PairwiseDistance as PairwiseDistance,
    ParameterDict as ParameterDict, ParameterList as ParameterList, Softmax2d as Softmax2d, Unfold as Unfold,
    UpsamplingBilinear2d as UpsamplingBilinear2d, UpsamplingNearest2d as UpsamplingNearest2d,
)

# under PyTorch's names
from wholestep.nn.layers.transformer_layers import (
    TransformerDecoder as TransformerDecoder, TransformerDecoderLayer as TransformerDecoderLayer,
    TransformerEncoder as TransformerEncoder, TransformerEncoderLayer as TransformerEncoderLayer,
)
from wholestep.nn.loss_modules import (
    BCELoss as BCELoss, BCEWithLogitsLoss as BCEWithLogitsLoss, CrossEntropyLoss as CrossEntropyLoss,
    HuberLoss as HuberLoss, L1Loss as L1Loss, MSELoss as MSELoss, NLLLoss as NLLLoss, SmoothL1Loss as SmoothL1Loss,
)
from wholestep.nn import functional as functional, init as init
