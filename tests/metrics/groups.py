"""Groups of metrics that tests treat differently; `test_contract.py` checks that they are complete."""

from __future__ import annotations

# Prediction and target are numbers of one shape.
OF_NUMBERS = (
    "mse", "rmse", "mae", "mape", "r2", "explained_variance", "pearson", "spearman", "psnr", "ndcg", "mrr", "hit_rate",
    "retrieval_map", "concordance", "loss",
)  # fmt: skip
OF_IMAGES = ("ssim",)  # of at least 11 x 11 pixels; all other metrics read scores or classes
LOWER_IS_BETTER = (
    "log_loss", "perplexity", "brier", "ece", "mce", "ace", "mse", "rmse", "mae", "mape", "loss",
)  # fmt: skip
