"""PyTorch: import of networks with `torch.export`, names and functions."""
