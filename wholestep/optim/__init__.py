"""Optimizers: frozen descriptions that record their update as tensor expressions."""

from wholestep.optim.adam import Adam, AdamW
from wholestep.optim.base import Optimizer, Runtime, runtime
from wholestep.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "Runtime", "runtime"]
