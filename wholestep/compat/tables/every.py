"""All tables of names, in the order in which they are asked."""

from wholestep.compat.rows import Names
from wholestep.compat.tables.keras_names import KERAS, KERAS_LAYERS
from wholestep.compat.tables.methods import MODULES, PARAMETERS, RESULTS, TENSORS
from wholestep.compat.tables.other_names import CALLBACKS, DATA, LOSSES, METRICS
from wholestep.compat.tables.torch_functional import FUNCTIONAL, INIT
from wholestep.compat.tables.torch_names import TORCH
from wholestep.compat.tables.torch_nn import NN
from wholestep.compat.tables.torch_optim import OPTIM, SCHEDULERS

EVERY_TABLE: tuple[Names, ...] = (
    TORCH, NN, FUNCTIONAL, INIT, OPTIM, SCHEDULERS, KERAS, KERAS_LAYERS, TENSORS, MODULES, PARAMETERS, RESULTS,
    LOSSES, METRICS, CALLBACKS, DATA,
)  # fmt: skip
