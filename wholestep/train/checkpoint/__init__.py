"""Checkpoints: the state of a run in files, and resuming from it."""

from wholestep.train.checkpoint.read import load_checkpoint, read_checkpoint
from wholestep.train.checkpoint.resume import Checkpoint
from wholestep.train.checkpoint.write import capture, save_checkpoint, write_checkpoint

__all__ = ["Checkpoint", "capture", "load_checkpoint", "read_checkpoint", "save_checkpoint", "write_checkpoint"]
