"""Which operators ONNX Runtime fuses in a graph when it loads it: counted, for the manifest. Nothing is changed."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import onnx

CONTRIB = "com.microsoft"
LARGEST_BYTES = 1 << 30  # above it, writing the optimized graph would take longer than it is worth


def online_fusions(path: Path) -> dict[str, int]:
    """Operator -> count of the fused (contrib) operators that ONNX Runtime makes of the file at its full level.

    An empty dict where the file is larger than LARGEST_BYTES.
    """
    import onnxruntime

    if path.stat().st_size > LARGEST_BYTES:
        return {}
    with tempfile.TemporaryDirectory(prefix="hfx-fusions-") as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        options.log_severity_level = 3  # it warns that such a file is for this machine: it is deleted here
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
    return dict(sorted(Counter(node.op_type for node in optimized.graph.node if node.domain == CONTRIB).items()))
