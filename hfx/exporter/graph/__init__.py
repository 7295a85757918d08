"""The blocks of a generator as values, and their ONNX graphs."""
