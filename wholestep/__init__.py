"""Wholestep: a whole training step - forward, loss, backward, update - compiled as one graph into one native call.

Recording a graph is loaded at once; everything else when it is first named, so that importing stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wholestep import errors
from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.activations import elu, hardswish, leaky_relu, mish, softplus, swiglu
from wholestep.compiler.frontend.custom_gradient import custom_gradient
from wholestep.compiler.frontend.functions import (
    abs,
    arange,
    cast,
    concat,
    cos,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    gather,
    gelu,
    iota,
    less_than,
    log,
    log1p,
    log2,
    log_softmax,
    logsumexp,
    matmul,
    maximum,
    minimum,
    mod,
    one_hot,
    pad,
    random_normal,
    random_uniform,
    ratio,
    recip,
    relu,
    scatter_add,
    sigmoid,
    sign,
    silu,
    sin,
    size,
    softmax,
    sqrt,
    stack,
    stop_gradient,
    take,
    tanh,
    where,
    write_rows,
)
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.layers import attention, batch_norm, by_mode, dropout, group_norm, layer_norm, rms_norm
from wholestep.compiler.frontend.scan import scan
from wholestep.compiler.frontend.sequences import cumsum, flip, rotary, split
from wholestep.compiler.frontend.step import Spec, Step, step
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.windows import avg_pool2d, conv1d, conv2d, global_avg_pool2d, max_pool2d
from wholestep.compiler.ir.types import Dim, bfloat16, float16, float32, float64, int32, int64, uint8
from wholestep.options import CompileOptions

if TYPE_CHECKING:
    from wholestep import callbacks, data, datasets, losses, metrics, models, nn, optim, schedules
    from wholestep.accumulation import AccumulationConfig, AccumulationStats, GradientAccumulator, GradientBuffer
    from wholestep.callbacks import (
        Callback,
        CallbackList,
        ConsoleObserver,
        CSVLogger,
        EarlyStopping,
        EpochStats,
        GradientStatistics,
        JSONLinesLogger,
        LossHistory,
        MetricCallback,
        ModelCheckpoint,
        Profiler,
        Progress,
        StepBudget,
        StepMetrics,
        TensorBoardLogger,
        TimeBudget,
    )
    from wholestep.data import DataLoader
    from wholestep.errors import AccumulationError, AccumulatorFull, NoGradients, ShapeMismatch
    from wholestep.optim import (
        LAMB,
        SGD,
        Adafactor,
        Adagrad,
        Adam,
        AdamOptimizer,
        AdamW,
        AMSGrad,
        Group,
        Lion,
        Muon,
        NAdam,
        Optimizer,
        RAdam,
        RMSprop,
        runtime,
        sgd,
        sgd_on_graph,
    )
    from wholestep.session import (
        ExecutionPlan,
        OptimizeReport,
        Session,
        StepResult,
        build_inference_session,
        build_session,
        build_session_cached,
        build_session_unoptimized,
        build_session_with_report,
        compile_training_graph,
        estimate,
        load_plan,
        save_plan,
    )
    from wholestep.train import (
        BasicTrainingLoop,
        Checkpoint,
        Experiment,
        History,
        TrainConfig,
        Trainer,
        TrainHistory,
        fit,
        load_checkpoint,
        save_checkpoint,
    )

__version__ = "0.1.0"

# Where the names live that are not loaded yet.
_HOMES: dict[str, str] = {
    **{
        name: f"wholestep.{name}"
        for name in ["callbacks", "data", "datasets", "losses", "metrics", "models", "nn", "optim", "schedules"]
    },
    **dict.fromkeys(
        ["AccumulationConfig", "AccumulationStats", "GradientAccumulator", "GradientBuffer"], "wholestep.accumulation"
    ),
    **dict.fromkeys(
        [
            "Callback",
            "CallbackList",
            "ConsoleObserver",
            "CSVLogger",
            "EarlyStopping",
            "EpochStats",
            "GradientStatistics",
            "JSONLinesLogger",
            "LossHistory",
            "MetricCallback",
            "ModelCheckpoint",
            "Profiler",
            "Progress",
            "StepBudget",
            "StepMetrics",
            "TensorBoardLogger",
            "TimeBudget",
        ],
        "wholestep.callbacks",
    ),
    **dict.fromkeys(["DataLoader"], "wholestep.data"),
    **dict.fromkeys(["AccumulationError", "AccumulatorFull", "NoGradients", "ShapeMismatch"], "wholestep.errors"),
    **dict.fromkeys(
        [
            "LAMB",
            "SGD",
            "Adafactor",
            "Adagrad",
            "Adam",
            "AdamOptimizer",
            "AdamW",
            "AMSGrad",
            "Group",
            "Lion",
            "Muon",
            "NAdam",
            "Optimizer",
            "RAdam",
            "RMSprop",
            "runtime",
            "sgd",
            "sgd_on_graph",
        ],
        "wholestep.optim",
    ),
    **dict.fromkeys(
        [
            "ExecutionPlan",
            "OptimizeReport",
            "Session",
            "StepResult",
            "build_inference_session",
            "build_session",
            "build_session_cached",
            "build_session_unoptimized",
            "build_session_with_report",
            "compile_training_graph",
            "estimate",
            "load_plan",
            "save_plan",
        ],
        "wholestep.session",
    ),
    **dict.fromkeys(
        [
            "BasicTrainingLoop",
            "Checkpoint",
            "Experiment",
            "History",
            "TrainConfig",
            "Trainer",
            "TrainHistory",
            "fit",
            "load_checkpoint",
            "save_checkpoint",
        ],
        "wholestep.train",
    ),
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'wholestep' has no attribute {name!r}")
    module = import_module(home)
    found = module if home == f"wholestep.{name}" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)


# fmt: off
__all__ = [
    # describing a network
    "Graph", "Tensor", "Dim", "Spec", "Step", "step", "gradients", "stop_gradient", "custom_gradient", "runtime",
    "float32", "float64", "bfloat16", "float16", "int32", "int64", "uint8",
    # functions of tensors
    "abs", "arange", "attention", "cast", "concat", "cos", "dropout", "erf", "exp", "exp2", "expm1", "floor", "gather",
    "gelu", "group_norm", "iota", "layer_norm", "less_than", "log", "log1p", "log2", "log_softmax", "logsumexp",
    "matmul", "maximum", "minimum", "mod", "one_hot", "pad", "random_normal", "random_uniform", "ratio", "recip",
    "relu", "rms_norm", "scan", "scatter_add", "sigmoid", "sign", "silu", "sin", "size", "softmax", "sqrt", "stack",
    "take", "tanh", "where", "write_rows", "avg_pool2d", "conv1d", "conv2d", "global_avg_pool2d", "max_pool2d",
    "batch_norm", "cumsum", "flip", "rotary", "split",
    "by_mode", "elu", "hardswish", "leaky_relu", "mish", "softplus", "swiglu",
    # optimizers
    "Optimizer", "Group", "SGD", "Adam", "AdamW", "AMSGrad", "NAdam", "RAdam", "RMSprop", "Adagrad", "Lion", "LAMB",
    "Adafactor", "Muon", "AdamOptimizer", "sgd", "sgd_on_graph",
    # gradient accumulation on arrays
    "AccumulationConfig", "AccumulationStats", "GradientAccumulator", "GradientBuffer", "AccumulationError",
    "AccumulatorFull", "NoGradients", "ShapeMismatch",
    # sessions and plans
    "build_session", "build_session_with_report", "build_session_unoptimized", "build_session_cached",
    "build_inference_session", "compile_training_graph", "estimate", "save_plan", "load_plan", "Session", "StepResult",
    "CompileOptions", "ExecutionPlan", "OptimizeReport",
    # training
    "Experiment", "Checkpoint", "load_checkpoint", "save_checkpoint", "ModelCheckpoint",
    "fit", "BasicTrainingLoop", "ConsoleObserver", "GradientStatistics", "Profiler", "Trainer", "TrainConfig",
    "TrainHistory", "History", "DataLoader", "Callback", "CallbackList", "CSVLogger", "EarlyStopping", "EpochStats",
    "JSONLinesLogger", "LossHistory", "MetricCallback", "Progress", "StepBudget", "StepMetrics",
    "TensorBoardLogger", "TimeBudget",
    # modules
    "callbacks", "data", "datasets", "errors", "init", "losses", "metrics", "models", "nn", "optim", "schedules",
    "__version__",
]
