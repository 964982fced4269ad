"""Import and export of networks as ONNX files."""
