"""All tables of names, in the order in which they are asked."""

from wholestep.compat.rows import Names
from wholestep.compat.tables.ancestor_names import GRAPHS, SESSIONS, TRAINERS
from wholestep.compat.tables.keras_names import KERAS, KERAS_LAYERS
from wholestep.compat.tables.methods import LOSS_VALUES, MODULES, PARAMETERS, RESULTS, TENSORS
from wholestep.compat.tables.other_names import CALLBACKS, DATA, LOSSES, METRICS
from wholestep.compat.tables.torch_functional import FUNCTIONAL, INIT
from wholestep.compat.tables.torch_names import TORCH
from wholestep.compat.tables.torch_nn import NN
from wholestep.compat.tables.torch_optim import OPTIM, SCHEDULERS
from wholestep.compat.tables.utils import NN_UTILS, UTILS

EVERY_TABLE: tuple[Names, ...] = (
    TORCH, NN, FUNCTIONAL, INIT, OPTIM, SCHEDULERS, KERAS, KERAS_LAYERS, TENSORS, MODULES, PARAMETERS, RESULTS, LOSS_VALUES,
    LOSSES, METRICS, CALLBACKS, DATA, UTILS, NN_UTILS, GRAPHS, SESSIONS, TRAINERS,
)  # fmt: skip
