# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.
from wholestep.interop.ancestors import BasicTrainingLoop as BasicTrainingLoop, History as History
from wholestep.train.checkpoint import (
    Checkpoint as Checkpoint, load_checkpoint as load_checkpoint, save_checkpoint as save_checkpoint,
)
from wholestep.train.experiment import Experiment as Experiment
from wholestep.train.history import TrainHistory as TrainHistory
from wholestep.train.replicas.history import Replica as Replica, ReplicaHistory as ReplicaHistory
from wholestep.train.config import TrainConfig as TrainConfig
from wholestep.train.trainer import Trainer as Trainer
from wholestep.train.fitting import fit as fit
from wholestep.train.tuning.cross_validation import CrossValidation as CrossValidation, cross_validate as cross_validate
from wholestep.train.tuning.trials import SearchResult as SearchResult, Trial as Trial, search as search
from wholestep.train.tuning.intervals import PredictionInterval as PredictionInterval
from wholestep.train.tuning.search import (
    RateSearch as RateSearch, find_batch_size as find_batch_size, find_lr as find_lr,
)
