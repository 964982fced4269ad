"""NVIDIA's libraries: cuBLASLt, cuDNN, NCCL, and which ops they compute."""
