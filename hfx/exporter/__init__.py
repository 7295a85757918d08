"""The export of a checkpoint: make a graph, write files, verify them, publish them. `pipeline.py` runs the steps."""

import os

if not __name__.startswith("hfx."):  # imported by the link at the top of the checkout: all classes would exist twice
    raise ImportError("This package is hfx.exporter. Import it by that name.")

# ONNX Runtime's wheel sends telemetry to its maker unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# torch's threads spin while they wait for each other unless this is set before OpenMP is loaded. On cores shared with
# other processes, spinning made the checkpoint's answers three times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
