"""Training loops: `fit`, `Trainer`, and what they leave behind."""

from wholestep.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from wholestep.train.config import TrainConfig
from wholestep.train.experiment import Experiment
from wholestep.train.fitting import fit
from wholestep.train.history import History, TrainHistory
from wholestep.train.loops import BasicTrainingLoop
from wholestep.train.trainer import Trainer

__all__ = [
    "BasicTrainingLoop", "Checkpoint", "Experiment", "History", "TrainConfig", "TrainHistory", "Trainer", "fit",
    "load_checkpoint", "save_checkpoint",
]  # fmt: skip
