# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.
from wholestep.optim.wrappers.weight_averaging import EMA as EMA, Lookahead as Lookahead, SWA as SWA
from wholestep.optim.wrappers.adaptive_clipping import AGC as AGC
from wholestep.optim.wrappers.cautious_weight_decay import CautiousWeightDecay as CautiousWeightDecay
from wholestep.optim.wrappers.gradient_centralization import GradientCentralization as GradientCentralization
from wholestep.optim.wrappers.pruning import Pruned as Pruned
from wholestep.optim.algorithms.averaging import ASGD as ASGD
from wholestep.optim.algorithms.rmsprop import Adadelta as Adadelta
from wholestep.optim.algorithms.adam_family import AdEMAMix as AdEMAMix
from wholestep.optim.algorithms.layerwise import LAMB as LAMB
from wholestep.optim.algorithms.layerwise import LARS as LARS
from wholestep.optim.algorithms.lbfgs import LBFGS as LBFGS
from wholestep.optim.algorithms.sign_based import Rprop as Rprop
from wholestep.optim.algorithms.prodigy import Prodigy as Prodigy
from wholestep.optim.wrappers.sam import SAM as SAM
from wholestep.optim.algorithms.averaging import (
    ScheduleFreeAdamW as ScheduleFreeAdamW, ScheduleFreeSGD as ScheduleFreeSGD,
)
from wholestep.optim.algorithms.sgd import SGD as SGD
from wholestep.optim.algorithms.adam import AMSGrad as AMSGrad, Adam as Adam, AdamW as AdamW
from wholestep.optim.algorithms.adafactor import Adafactor as Adafactor
from wholestep.optim.algorithms.rmsprop import Adagrad as Adagrad, RMSprop as RMSprop
from wholestep.optim.core.on_graph import (
    AdamOptimizer as AdamOptimizer, SGDGraph as SGDGraph, SGDUpdate as SGDUpdate, sgd as sgd,
    sgd_on_graph as sgd_on_graph,
)
from wholestep.optim.core.groups import Group as Group, layerwise_lr_decay as layerwise_lr_decay
from wholestep.optim.algorithms.sign_based import Lion as Lion
from wholestep.optim.algorithms.muon import Muon as Muon, NorMuon as NorMuon
from wholestep.optim.algorithms.adam_family import Adamax as Adamax, NAdam as NAdam, RAdam as RAdam
from wholestep.optim.algorithms.second_moments import (
    AdaBelief as AdaBelief, Adan as Adan, NovoGrad as NovoGrad, Yogi as Yogi,
)
from wholestep.optim.algorithms.soap import SOAP as SOAP
from wholestep.optim.algorithms.sophia import SophiaG as SophiaG
from wholestep.optim.algorithms.eight_bit import Adam8bit as Adam8bit, AdamW8bit as AdamW8bit
from wholestep.optim.core.base import Optimizer as Optimizer
from wholestep.optim.core.options import Runtime as Runtime, runtime as runtime
from wholestep.optim.core.averages import averaged as averaged, raw_weights as raw_weights
from wholestep.optim.core.gradient_transforms import (
    clip_adaptively as clip_adaptively, clip_by_global_norm as clip_by_global_norm, clip_by_norm as clip_by_norm,
    clip_by_value as clip_by_value, count_nonfinite as count_nonfinite, global_norm as global_norm,
    project_conflicts as project_conflicts,
)

# by name
from wholestep.optim.core.names import get as get
