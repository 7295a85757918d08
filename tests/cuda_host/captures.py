"""Child: open each file of the arguments with CUDA graphs, and print why the provider refuses it, as {file: reason}."""

from __future__ import annotations

import json
import sys

import onnxruntime

from hfx.python_backends.engine.captures import CAPTURE
from hfx.python_backends.engine.sessions import PROVIDERS


def refusal(file: str) -> str:
    """Return ONNX Runtime's reason against capturing runs of the graph in `file`; empty if there is none."""
    try:
        session = onnxruntime.InferenceSession(file, providers=[(PROVIDERS["CUDA"], {CAPTURE: "1"}), PROVIDERS["CPU"]])
    except Exception as error:  # its exceptions have no common class below Exception
        return str(error)
    return "" if PROVIDERS["CUDA"] in session.get_providers() else "the CUDA provider could not be loaded"


print(json.dumps({file: refusal(file) for file in sys.argv[1:]}))
