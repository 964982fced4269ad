"""NVIDIA GPUs: plans for them, generated CUDA kernels, and the CUDA graphs that run a step."""
