"""Convolutions, pools and their gradients on the CPU: padding, taps, tiles, and the workspace of each algorithm."""
