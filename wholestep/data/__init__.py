"""Data: loaders, orders, sources and transforms."""

from wholestep.data.loader import DataLoader
from wholestep.data.order import Balanced, Sampler, Sequential, Shuffled, Subset, Weighted
from wholestep.data.sources import mnist, open_npy, read_csv, read_idx
from wholestep.data.table import Batch, Table, as_table, split
from wholestep.data.transforms import Crop, Flip, Noise, Normalize, Scale

__all__ = [
    "Balanced", "Batch", "Crop", "DataLoader", "Flip", "Noise", "Normalize", "Sampler", "Scale", "Sequential",
    "Shuffled", "Subset", "Table", "Weighted", "as_table", "mnist", "open_npy", "read_csv", "read_idx", "split",
]  # fmt: skip
