"""What ONNX Runtime's CUDA provider does with hfx's files, without a GPU (tests/rigs/machine/cuda_host.py)."""
