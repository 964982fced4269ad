"""Graphs of this library as ONNX models."""
