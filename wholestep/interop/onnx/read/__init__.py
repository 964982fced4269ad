"""Import of ONNX files: read into plain data, then recorded operator by operator."""
