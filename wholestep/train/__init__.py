"""Training loops: `fit`, `Trainer`, and what they leave behind."""

from wholestep.train.fit import fit
from wholestep.train.history import History, TrainHistory
from wholestep.train.loops import BasicTrainingLoop
from wholestep.train.trainer import TrainConfig, Trainer

__all__ = ["BasicTrainingLoop", "History", "TrainConfig", "TrainHistory", "Trainer", "fit"]
