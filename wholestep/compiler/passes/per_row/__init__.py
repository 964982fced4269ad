"""Losses and gradient norms per row of a batch, without storing the gradient of every row."""
