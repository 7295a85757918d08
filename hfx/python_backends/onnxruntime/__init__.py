"""`backend: "onnxruntime"` of the embedded server, in Python; it takes the config.pbtxt of NVIDIA's C++ backend."""
