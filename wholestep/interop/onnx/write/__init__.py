"""Export of graphs as ONNX models."""
