"""SPMD partitioning of a step: data, tensor and optimizer-state (ZeRO-1) parallelism, and bucketing of collectives."""
