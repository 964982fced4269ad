"""CUDA: described, so that plans can be made for it; nothing here runs them yet."""
