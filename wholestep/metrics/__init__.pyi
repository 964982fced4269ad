# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.

# classes
from wholestep.metrics.accuracy import Accuracy as Accuracy, TopKAccuracy as TopKAccuracy
from wholestep.metrics.confusion import (
    ConfusionMatrix as ConfusionMatrix, Precision as Precision, Recall as Recall, F1 as F1, FBeta as FBeta, IoU as IoU,
    Dice as Dice,
)
from wholestep.metrics.agreement import BalancedAccuracy as BalancedAccuracy, MCC as MCC, CohenKappa as CohenKappa
from wholestep.metrics.likelihood import (
    LogLoss as LogLoss, Perplexity as Perplexity, Brier as Brier, ECE as ECE, MCE as MCE,
    AdaptiveCalibrationError as AdaptiveCalibrationError,
)
from wholestep.metrics.ranking import RocAuc as RocAuc, AveragePrecision as AveragePrecision
from wholestep.metrics.ranking import RocCurve as RocCurve, PrecisionRecallCurve as PrecisionRecallCurve

# ranked lists
from wholestep.metrics.retrieval import NDCG as NDCG, MRR as MRR, HitRate as HitRate, RetrievalMAP as RetrievalMAP

# images, survival times
from wholestep.metrics.images import PSNR as PSNR, SSIM as SSIM
from wholestep.metrics.survival import Concordance as Concordance

# generated sequences, on arrays
from wholestep.metrics.text import BLEU as BLEU, WER as WER, edit_distance as edit_distance

# detected boxes, on arrays
from wholestep.metrics.detection import MeanAveragePrecision as MeanAveragePrecision

# numbers
from wholestep.metrics.means import MSE as MSE, RMSE as RMSE, MAE as MAE, MAPE as MAPE
from wholestep.metrics.correlation import R2 as R2
from wholestep.metrics.correlation import (
    ExplainedVariance as ExplainedVariance, Pearson as Pearson, Spearman as Spearman,
)

# of one's own
from wholestep.metrics.functions import Function as Function, OverEpoch as OverEpoch

# the loss itself
from wholestep.metrics.means import LossTracker as LossTracker

# by name
from wholestep.metrics.table import METRICS as METRICS, get as get, get_all as get_all
from wholestep.metrics.base import Metric as Metric
