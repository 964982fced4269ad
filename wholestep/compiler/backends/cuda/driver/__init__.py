"""The CUDA driver, NVRTC and memory of the host and the device."""
