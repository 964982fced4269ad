# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api.md.
from wholestep.optim.wrappers import EMA as EMA, Lookahead as Lookahead, SWA as SWA
from wholestep.optim.clipped import AGC as AGC
from wholestep.optim.asgd import ASGD as ASGD
from wholestep.optim.adadelta import Adadelta as Adadelta
from wholestep.optim.ademamix import AdEMAMix as AdEMAMix
from wholestep.optim.lamb import LAMB as LAMB
from wholestep.optim.lars import LARS as LARS
from wholestep.optim.lbfgs import LBFGS as LBFGS
from wholestep.optim.rprop import Rprop as Rprop
from wholestep.optim.prodigy import Prodigy as Prodigy
from wholestep.optim.sam import SAM as SAM
from wholestep.optim.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
from wholestep.optim.sgd import SGD as SGD
from wholestep.optim.adam import AMSGrad as AMSGrad, Adam as Adam, AdamW as AdamW
from wholestep.optim.adafactor import Adafactor as Adafactor
from wholestep.optim.rmsprop import Adagrad as Adagrad, RMSprop as RMSprop
from wholestep.optim.on_graph import (
    AdamOptimizer as AdamOptimizer, SGDGraph as SGDGraph, SGDUpdate as SGDUpdate, sgd as sgd,
    sgd_on_graph as sgd_on_graph,
)
from wholestep.optim.groups import Group as Group
from wholestep.optim.lion import Lion as Lion
from wholestep.optim.muon import Muon as Muon
from wholestep.optim.adam_family import Adamax as Adamax, NAdam as NAdam, RAdam as RAdam
from wholestep.optim.base import Optimizer as Optimizer
from wholestep.optim.options import Runtime as Runtime, runtime as runtime
from wholestep.optim.averages import averaged as averaged, raw_weights as raw_weights
from wholestep.optim.techniques import (
    clip_adaptively as clip_adaptively, clip_by_global_norm as clip_by_global_norm, clip_by_norm as clip_by_norm,
    clip_by_value as clip_by_value, count_nonfinite as count_nonfinite, global_norm as global_norm,
)

# by name
from wholestep.optim.names import get as get
