"""PyTorch: networks by `torch.export`."""
