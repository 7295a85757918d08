"""The blocks that describe a generator, and the writers of their ONNX graphs."""
