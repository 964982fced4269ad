# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.
from wholestep.data.order import (
    Balanced as Balanced, Poisson as Poisson, Sampler as Sampler, Sequential as Sequential, Shuffled as Shuffled,
    Subset as Subset, Weighted as Weighted,
)
from wholestep.data.row_samplers import Hard as Hard, Importance as Importance, SelfPaced as SelfPaced
from wholestep.data.table import Batch as Batch, Table as Table, as_table as as_table
from wholestep.data.tables.frame import Frame as Frame, as_frame as as_frame
from wholestep.data.files import read_frame as read_frame
from wholestep.data.tables.encoder import Encoder as Encoder
from wholestep.data.tables.encoding import Encoding as Encoding
from wholestep.data.splits import Holdout as Holdout, folds as folds, split as split
from wholestep.data.transforms import Crop as Crop, Flip as Flip, Noise as Noise, Normalize as Normalize, Scale as Scale
from wholestep.data.augment import (
    Augmentation as Augmentation, ColorJitter as ColorJitter, CutMix as CutMix, Cutout as Cutout,
    MaskTokens as MaskTokens, MixUp as MixUp, RandomAffine as RandomAffine, RandomErasing as RandomErasing,
    RandomFlip as RandomFlip, SpecAugment as SpecAugment,
)
from wholestep.data.sequences.ragged import Ragged as Ragged
from wholestep.data.images import ImageFolder as ImageFolder
from wholestep.data.text import BytePairs as BytePairs, Vocabulary as Vocabulary
from wholestep.data.windows import Windows as Windows
from wholestep.data.loader import DataLoader as DataLoader
from wholestep.data.files import mnist as mnist, open_npy as open_npy, read_csv as read_csv, read_idx as read_idx
