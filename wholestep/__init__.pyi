# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.

from wholestep.compiler.frontend import initializers

# describing a network
from wholestep.compiler.frontend.graph import Graph as Graph
from wholestep.compiler.frontend.tensor import Tensor as Tensor
from wholestep.compiler.ir.types import (
    Dim as Dim, float32 as float32, float64 as float64, bfloat16 as bfloat16, float16 as float16, int32 as int32,
    int64 as int64, uint8 as uint8,
)
from wholestep.compiler.frontend.step import Spec as Spec, Step as Step, step as step
from wholestep.compiler.frontend.gradients import gradients as gradients, hessian as hessian, jacobian as jacobian
from wholestep.compiler.frontend.functions.primitives import stop_gradient as stop_gradient
from wholestep.compiler.frontend.control.custom_gradient import custom_gradient as custom_gradient
from wholestep.optim import runtime as runtime

# functions of tensors
from wholestep.compiler.frontend.functions.primitives import (
    abs as abs, arange as arange, atan as atan, cast as cast, concat as concat, cos as cos, erf as erf, exp as exp,
    exp2 as exp2, expm1 as expm1, floor as floor, gather as gather, gelu as gelu, iota as iota, less_than as less_than,
    log as log, log1p as log1p, log2 as log2, log_softmax as log_softmax, logsumexp as logsumexp, matmul as matmul,
    maximum as maximum, minimum as minimum, mod as mod, one_hot as one_hot, random_normal as random_normal,
    random_uniform as random_uniform, ratio as ratio, recip as recip, relu as relu, scatter_add as scatter_add,
    sigmoid as sigmoid, sign as sign, silu as silu, sin as sin, size as size, softmax as softmax, sqrt as sqrt,
    stack as stack, take as take, tanh as tanh, where as where, write_rows as write_rows,
)
from wholestep.compiler.frontend.layers.composites import (
    attention as attention, dropout as dropout, group_norm as group_norm, layer_norm as layer_norm,
    rms_norm as rms_norm, batch_norm as batch_norm, by_mode as by_mode,
)
from wholestep.compiler.frontend.control.scan import scan as scan
from wholestep.compiler.frontend.layers.convolution import conv1d as conv1d, conv2d as conv2d, conv3d as conv3d
from wholestep.compiler.frontend.layers.transposed_convolution import (
    conv_transpose1d as conv_transpose1d, conv_transpose2d as conv_transpose2d, conv_transpose3d as conv_transpose3d,
)
from wholestep.compiler.frontend.layers.pooling import (
    avg_pool1d as avg_pool1d, avg_pool2d as avg_pool2d, avg_pool3d as avg_pool3d, max_pool1d as max_pool1d,
    max_pool2d as max_pool2d, max_pool3d as max_pool3d,
)
from wholestep.compiler.frontend.layers.adaptive_pooling import (
    adaptive_avg_pool1d as adaptive_avg_pool1d, adaptive_avg_pool2d as adaptive_avg_pool2d,
    adaptive_avg_pool3d as adaptive_avg_pool3d, adaptive_max_pool1d as adaptive_max_pool1d,
    adaptive_max_pool2d as adaptive_max_pool2d, adaptive_max_pool3d as adaptive_max_pool3d,
    global_avg_pool1d as global_avg_pool1d, global_avg_pool2d as global_avg_pool2d,
    global_avg_pool3d as global_avg_pool3d, global_max_pool1d as global_max_pool1d,
    global_max_pool2d as global_max_pool2d,
)
from wholestep.compiler.frontend.layers.pooling import (
    local_response_norm as local_response_norm, max_pool2d_with_indices as max_pool2d_with_indices,
    max_unpool2d as max_unpool2d,
)
from wholestep.compiler.frontend.layers.segments import positions as positions
from wholestep.compiler.frontend.shape.padding import pad as pad
from wholestep.compiler.frontend.layers.unfold import fold as fold, unfold as unfold, windows_along as windows_along
from wholestep.compiler.frontend.layers.grid_sample import affine_grid as affine_grid, grid_sample as grid_sample
from wholestep.compiler.frontend.functions.fourier import dft as dft, irfft as irfft, rfft as rfft
from wholestep.compiler.frontend.shape.sort_topk import (
    argsort as argsort, random_integers as random_integers, sort as sort, take_along_axis as take_along_axis,
    topk as topk,
)
from wholestep.compiler.frontend.shape.scatter import (
    index_add as index_add, index_copy as index_copy, index_fill as index_fill, index_put as index_put,
    masked_scatter as masked_scatter, put_along_axis as put_along_axis, scatter_slice as scatter_slice,
)
from wholestep.compiler.frontend.functions.cumulative import (
    cummax as cummax, cummin as cummin, cumprod as cumprod, logcumsumexp as logcumsumexp, prod as prod,
)
from wholestep.compiler.frontend.functions.histogram import (
    bincount as bincount, bucketize as bucketize, histc as histc, searchsorted as searchsorted,
)
from wholestep.compiler.frontend.functions.trigonometry import (
    acos as acos, acosh as acosh, asin as asin, asinh as asinh, atan2 as atan2, atanh as atanh, sinc as sinc,
)
from wholestep.compiler.frontend.functions.special import digamma as digamma, erfinv as erfinv, lgamma as lgamma
from wholestep.compiler.frontend.functions.elementwise import (
    bitwise_and as bitwise_and, bitwise_not as bitwise_not, bitwise_or as bitwise_or, bitwise_xor as bitwise_xor,
    left_shift as left_shift, right_shift as right_shift,
)
from wholestep.compiler.frontend.layers.resize import (
    interpolate as interpolate, pixel_shuffle as pixel_shuffle, pixel_unshuffle as pixel_unshuffle,
)
from wholestep.compiler.frontend.shape.sequences import cumsum as cumsum, flip as flip, rotary as rotary, split as split
from wholestep.compiler.frontend.functions.activations import (
    elu as elu, hardswish as hardswish, leaky_relu as leaky_relu, mish as mish, softplus as softplus, swiglu as swiglu,
)
from wholestep.compiler.frontend.functions.elementwise import (
    ceil as ceil, clip as clip, floor_divide as floor_divide, isfinite as isfinite, isinf as isinf, isnan as isnan,
    lerp as lerp, log10 as log10, logical_xor as logical_xor, masked_fill as masked_fill, pow as pow, round as round,
    rsqrt as rsqrt, square as square, trunc as trunc,
)
from wholestep.compiler.frontend.functions.statistics import (
    all as all, any as any, argmin as argmin, cosine_similarity as cosine_similarity, count_nonzero as count_nonzero,
    norm as norm, normalize as normalize, std as std, var as var,
)
from wholestep.compiler.frontend.functions.creation import (
    constant as constant, eye as eye, full as full, full_like as full_like, linspace as linspace, ones as ones,
    ones_like as ones_like, tril as tril, triu as triu, zeros as zeros, zeros_like as zeros_like,
)
from wholestep.compiler.frontend.shape.axes import (
    chunk as chunk, flatten as flatten, movedim as movedim, permute as permute, repeat as repeat, reshape as reshape,
    roll as roll, squeeze as squeeze, transpose as transpose, unbind as unbind, unflatten as unflatten,
    unsqueeze as unsqueeze,
)
from wholestep.compiler.frontend.functions.einsum import einsum as einsum
from wholestep.compiler.frontend.functions.linear_algebra import (
    cholesky as cholesky, det as det, inv as inv, slogdet as slogdet, solve as solve,
    solve_triangular as solve_triangular,
)

# networks of other libraries
from wholestep.interop.torch.aten import (
    from_torch as from_torch, torch_coverage as torch_coverage, torch_op as torch_op,
)
from wholestep.nn.module.graph_module import load_network as load_network

# several models as one
from wholestep.nn.layers.containers import Ensemble as Ensemble

# optimizers
from wholestep.optim import (
    Optimizer as Optimizer, Group as Group, SGD as SGD, Adam as Adam, AdamW as AdamW, AMSGrad as AMSGrad,
    NAdam as NAdam, RAdam as RAdam, RMSprop as RMSprop, Adagrad as Adagrad, Lion as Lion, LAMB as LAMB,
    Adafactor as Adafactor, Muon as Muon, Adadelta as Adadelta, Adamax as Adamax, Rprop as Rprop, ASGD as ASGD,
    LARS as LARS, AdEMAMix as AdEMAMix, ScheduleFreeAdamW as ScheduleFreeAdamW, Prodigy as Prodigy, LBFGS as LBFGS,
    NorMuon as NorMuon, ScheduleFreeSGD as ScheduleFreeSGD,
    AdaBelief as AdaBelief, Yogi as Yogi, Adan as Adan, NovoGrad as NovoGrad,
    SOAP as SOAP, SophiaG as SophiaG, Adam8bit as Adam8bit, AdamW8bit as AdamW8bit,
    AdamOptimizer as AdamOptimizer, sgd as sgd, sgd_on_graph as sgd_on_graph,
)

# gradient accumulation on arrays
from wholestep.accumulation import (
    AccumulationConfig as AccumulationConfig, AccumulationStats as AccumulationStats,
    GradientAccumulator as GradientAccumulator, GradientBuffer as GradientBuffer,
)
from wholestep.errors import (
    AccumulationError as AccumulationError, AccumulatorFull as AccumulatorFull, NoGradients as NoGradients,
    ShapeMismatch as ShapeMismatch,
)

# what is added to a loss
from wholestep.nn.module.regularizers import add_loss as add_loss, penalties as penalties

# sessions and plans
from wholestep.session import (
    build_session as build_session, build_session_with_report as build_session_with_report,
    build_session_unoptimized as build_session_unoptimized, build_session_cached as build_session_cached,
    build_inference_session as build_inference_session, compile_training_graph as compile_training_graph,
    compute_gradients as compute_gradients, estimate as estimate, save_plan as save_plan, load_plan as load_plan,
    Session as Session, StepResult as StepResult, StepEstimate as StepEstimate, ExecutionPlan as ExecutionPlan,
    OptimizeReport as OptimizeReport,
)
from wholestep.options import CompileOptions as CompileOptions
from wholestep.session.verify.finite_differences import gradcheck as gradcheck, GradientReport as GradientReport

# many machines
from wholestep.distributed.workers import Workers as Workers
from wholestep.distributed.network import Network as Network

# training
from wholestep.steps.loss_scale import LossScale as LossScale
from wholestep.steps.states import manual_seed as manual_seed
from wholestep.train import (
    Experiment as Experiment, Checkpoint as Checkpoint, load_checkpoint as load_checkpoint,
    save_checkpoint as save_checkpoint, fit as fit, cross_validate as cross_validate,
    CrossValidation as CrossValidation, BasicTrainingLoop as BasicTrainingLoop, Trainer as Trainer,
    TrainConfig as TrainConfig, TrainHistory as TrainHistory, Replica as Replica, ReplicaHistory as ReplicaHistory,
    PredictionInterval as PredictionInterval, History as History, find_batch_size as find_batch_size,
    find_lr as find_lr, search as search, SearchResult as SearchResult, Trial as Trial,
)
from wholestep.train.branch import branch as branch
from wholestep.train.replay import (
    Difference as Difference, Replay as Replay, compare_runs as compare_runs, verify_determinism as verify_determinism,
)
from wholestep.train.lint.lint import LintReport as LintReport, lint as lint
from wholestep.privacy.settings import Privacy as Privacy
from wholestep.callbacks import (
    ModelCheckpoint as ModelCheckpoint, ConsoleObserver as ConsoleObserver, GradientStatistics as GradientStatistics,
    WeightStatistics as WeightStatistics, Profiler as Profiler, Callback as Callback, CallbackList as CallbackList,
    CSVLogger as CSVLogger, EarlyStopping as EarlyStopping, EpochStats as EpochStats,
    JSONLinesLogger as JSONLinesLogger, LossHistory as LossHistory, MetricCallback as MetricCallback,
    Progress as Progress, StepBudget as StepBudget, StepMetrics as StepMetrics, TensorBoardLogger as TensorBoardLogger,
    TimeBudget as TimeBudget,
)
from wholestep.data import DataLoader as DataLoader

# networks of other libraries
from wholestep.interop.onnx.read.module import from_onnx as from_onnx
from wholestep.interop.onnx.read.table import onnx_op as onnx_op
from wholestep.interop.onnx.write.export import export_onnx as export_onnx
from wholestep.models.pretrained import load_pretrained as load_pretrained

# modules
from wholestep import (
    callbacks as callbacks, data as data, datasets as datasets, errors as errors, losses as losses, metrics as metrics,
    models as models, nn as nn, optim as optim, privacy as privacy,
    schedules as schedules,
)
init = initializers

__version__: str
