"""NVIDIA's libraries (cuBLASLt, cuDNN, NCCL), and which operations they compute."""
