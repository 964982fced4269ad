"""Distribution of a step over ranks: data, tensor and optimizer-state parallelism, collectives."""
