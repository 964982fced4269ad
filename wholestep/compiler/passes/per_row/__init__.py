"""Losses and gradient norms of single rows of a batch, without the gradients of single rows in memory."""
