"""Layers as functions: normalization, attention, convolution, pooling, resampling."""
