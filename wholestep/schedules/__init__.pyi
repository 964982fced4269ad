# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.
from wholestep.schedules.base import Schedule as Schedule
from wholestep.schedules.curves import (
    Constant as Constant, Linear as Linear, Polynomial as Polynomial, Cosine as Cosine, Exponential as Exponential,
    StepDecay as StepDecay, MultiStep as MultiStep, InverseSqrt as InverseSqrt,
)
from wholestep.schedules.cycles import (
    Cyclic as Cyclic, OneCycle as OneCycle, WarmRestarts as WarmRestarts, WarmupStableDecay as WarmupStableDecay,
)
from wholestep.schedules.compose import Warmup as Warmup, Sequence as Sequence, Chained as Chained
from wholestep.schedules.functions import Lambda as Lambda, Table as Table
from wholestep.schedules.plateau import ReduceOnPlateau as ReduceOnPlateau
from wholestep.interop.ancestors import SGDR as SGDR

# over a whole run
from wholestep.schedules.run_length import (
    Planned as Planned, constant as constant, cosine as cosine, linear as linear, one_cycle as one_cycle,
    polynomial as polynomial,
)

# under torch's names
from wholestep.schedules.torch_schedule import TorchSchedule as TorchSchedule
from wholestep.schedules.torch_names import (
    ConstantLR as ConstantLR, LinearLR as LinearLR, PolynomialLR as PolynomialLR,
    CosineAnnealingLR as CosineAnnealingLR, ExponentialLR as ExponentialLR, StepLR as StepLR,
    MultiStepLR as MultiStepLR, OneCycleLR as OneCycleLR, CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts,
    SequentialLR as SequentialLR, ReduceLROnPlateau as ReduceLROnPlateau, LambdaLR as LambdaLR, CyclicLR as CyclicLR,
    ChainedScheduler as ChainedScheduler, SWALR as SWALR,
)
