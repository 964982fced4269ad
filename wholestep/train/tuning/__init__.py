"""Searches over settings: learning rate, batch size, cross-validation."""
