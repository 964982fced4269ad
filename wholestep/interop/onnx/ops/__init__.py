"""The rows of ONNX's own operators, by family."""
