"""Checkpoint -> graph -> files -> verified -> published. `pipeline.py` is the list of steps."""

import os

# ONNX Runtime's wheel reports to its maker unless it is told not to before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
