"""ONNX files as networks: read into plain data, recorded by one row per operator."""
