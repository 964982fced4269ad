# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.

# numbers
from wholestep.losses.regression import (
    mse_loss as mse_loss, rmse_loss as rmse_loss, mae_loss as mae_loss, huber_loss as huber_loss,
    smooth_l1_loss as smooth_l1_loss, log_cosh_loss as log_cosh_loss, quantile_loss as quantile_loss,
    expectile_loss as expectile_loss,
    poisson_nll_loss as poisson_nll_loss, gaussian_nll_loss as gaussian_nll_loss,
)

# classes
from wholestep.losses.classification import (
    cross_entropy as cross_entropy, cross_entropy_with_logits_loss as cross_entropy_with_logits_loss,
    kl_div_with_logits_loss as kl_div_with_logits_loss,
    binary_cross_entropy_with_logits_loss as binary_cross_entropy_with_logits_loss, focal_loss as focal_loss,
    hinge_loss as hinge_loss, poly1_loss as poly1_loss,
)

# vectors and regions
from wholestep.losses.similarity import (
    cosine_embedding_loss as cosine_embedding_loss, dice_loss as dice_loss, info_nce_loss as info_nce_loss,
    tversky_loss as tversky_loss, supervised_contrastive_loss as supervised_contrastive_loss,
    arcface_loss as arcface_loss,
)
from wholestep.losses.distances import (
    contrastive_loss as contrastive_loss, margin_ranking_loss as margin_ranking_loss, triplet_loss as triplet_loss,
    triplet_margin_loss as triplet_margin_loss,
)

# a teacher's scores or features; survival times
from wholestep.losses.teachers import (
    distillation_loss as distillation_loss, feature_distillation_loss as feature_distillation_loss,
)
from wholestep.losses.survival import cox_loss as cox_loss

# truth values of constraints
from wholestep.losses.constraints import (
    constraint_loss as constraint_loss, soft_and as soft_and, soft_implies as soft_implies, soft_not as soft_not,
    soft_or as soft_or,
)

# models that end in probabilities; sequences
from wholestep.losses.probabilities import bce_of_probabilities_loss as bce_of_probabilities_loss, nll_loss as nll_loss
from wholestep.losses.sequences import ctc_loss as ctc_loss

# short names
mse = mse_loss
rmse = rmse_loss
mae = mae_loss
l1 = mae_loss
huber = huber_loss
smooth_l1 = smooth_l1_loss
log_cosh = log_cosh_loss
quantile = quantile_loss
expectile = expectile_loss
poisson_nll = poisson_nll_loss
gaussian_nll = gaussian_nll_loss
kl_div = kl_div_with_logits_loss
bce = binary_cross_entropy_with_logits_loss
binary_cross_entropy = binary_cross_entropy_with_logits_loss
focal = focal_loss
poly1 = poly1_loss
hinge = hinge_loss
cosine_embedding = cosine_embedding_loss
dice = dice_loss
info_nce = info_nce_loss
tversky = tversky_loss
supervised_contrastive = supervised_contrastive_loss
arcface = arcface_loss
distillation = distillation_loss
feature_distillation = feature_distillation_loss
cox = cox_loss
nll = nll_loss
bce_of_probabilities = bce_of_probabilities_loss
ctc = ctc_loss
triplet = triplet_loss
triplet_margin = triplet_margin_loss
margin_ranking = margin_ranking_loss
contrastive = contrastive_loss

# by name, and on arrays
from wholestep.losses.table import LOSSES as LOSSES, Loss as Loss, get as get
from wholestep.losses.arrays import value_and_grad as value_and_grad
