"""Estimated times of scheduled kernels, which find schedules that are far slower than the price of their work."""
