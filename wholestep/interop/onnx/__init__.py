"""ONNX: networks read from files and written to them."""
