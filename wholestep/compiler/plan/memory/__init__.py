"""Order of kernels, liveness, in-place reuse and offsets of buffers."""
