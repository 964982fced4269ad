"""`python -m benchmarks cuda`: training steps on one GPU, ours and the peers', in interleaved rounds."""
