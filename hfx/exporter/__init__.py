"""Checkpoint -> graph -> files -> verified -> published. `pipeline.py` is the list of steps."""

import os

if not __name__.startswith("hfx."):  # by the link at the top of the checkout: all classes would exist twice
    raise ImportError("This package is hfx.exporter. Import it by that name.")

# ONNX Runtime's wheel reports to its maker unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# torch's threads spin while they wait for each other unless this is set before OpenMP is loaded: on cores that
# others use too, that made the checkpoint's answers three times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
