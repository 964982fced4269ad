# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.
from wholestep.compat.ancestors import (
    AccumulationConfig as AccumulationConfig, AccumulationError as AccumulationError,
    AccumulationStats as AccumulationStats, AccumulatorFull as AccumulatorFull, AdamOptimizer as AdamOptimizer,
    BasicTrainingLoop as BasicTrainingLoop, ExecutionPlan as ExecutionPlan, GradientAccumulator as GradientAccumulator,
    GradientBuffer as GradientBuffer, History as History, MetricCallback as MetricCallback, NoGradients as NoGradients,
    SGDGraph as SGDGraph, SGDR as SGDR, SGDUpdate as SGDUpdate, ShapeMismatch as ShapeMismatch, sgd as sgd,
    sgd_on_graph as sgd_on_graph,
)
