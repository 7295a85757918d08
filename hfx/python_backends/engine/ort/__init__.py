"""What runs a model in ONNX Runtime."""
