"""`backend: "onnxruntime"` for the embedded server in Python, for the config.pbtxt that NVIDIA's C++ backend takes."""
