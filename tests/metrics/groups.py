"""Groups of metrics that tests treat differently; `test_contract.py` checks that they are complete."""

from __future__ import annotations

# Prediction and target are numbers of one shape; all other metrics read scores or classes.
OF_NUMBERS = ("mse", "rmse", "mae", "mape", "r2", "explained_variance", "pearson", "spearman", "loss")
LOWER_IS_BETTER = ("log_loss", "perplexity", "ece", "mse", "rmse", "mae", "mape", "loss")
