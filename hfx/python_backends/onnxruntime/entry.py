"""The file that Triton loads as `model.py` of the backend.

Triton imports this file as a top-level module, which can't import its neighbours relatively. The backend itself
therefore lies beside it, in the package hfx_backend.
"""

from hfx_backend.onnxruntime.model import TritonPythonModel  # type: ignore[import-not-found]

__all__ = ["TritonPythonModel"]
