"""The rows that record ONNX operators, by family."""
