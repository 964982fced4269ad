"""Renderer of C dialects: the part of code generation that C and CUDA C++ share."""
