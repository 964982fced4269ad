"""The CUDA driver API, NVRTC, CUDA graphs, and host and device memory."""
