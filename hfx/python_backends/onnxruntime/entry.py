"""What Triton loads as `model.py` of the backend.

Triton imports that file as a top-level module, which can't import its neighbours relatively; so the backend itself lies
beside it in the package hfx_backend.
"""

from hfx_backend.onnxruntime.model import TritonPythonModel  # type: ignore[import-not-found]

__all__ = ["TritonPythonModel"]
