"""transformers' own ONNX exporter (`transformers.exporters`), fused for CPUs, on a plain ONNX Runtime session.

Its int8 is onnxruntime's quantize_dynamic, by the exporter's own quantizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.packages import Packages
from bench.peers import Model
from bench.peers.transformers_api import Embedding, Labelling

PACKAGES = (Packages("exporters", ("onnxscript==0.7.0",)),)
SAMPLES = ("a text", "another text that has more tokens")  # what is traced: sizes that differ become symbols


def convert(model: Model, folder: str, precision: str, variant: str) -> None:
    """Trace and fuse, then quantize."""
    import transformers
    from transformers.exporters import OnnxConfig, OnnxExporter, OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

    net = getattr(transformers, model.transformers_class).from_pretrained(model.folder).eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model.folder)
    samples = dict(tokenizer(list(SAMPLES), padding=True, return_tensors="pt"))
    quantizer = OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig()) if precision == "int8" else None
    config = OnnxConfig(dynamic=True, ort_fusions="cpu", quantizer=quantizer)
    OnnxExporter().export(net, samples, config).save_pretrained(folder)


def open_net(model: Model, folder: str, precision: str, threads: int, variant: str) -> Embedding | Labelling:
    """The converted graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(Path(folder) / "model.onnx", options, providers=["CPUExecutionProvider"])
    names, outputs = [each.name for each in session.get_inputs()], [session.get_outputs()[0].name]

    def run(tensors: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = session.run(outputs, {name: tensors[name] for name in names})[0]
        return found

    return Embedding(model, run) if model.kind == "embedder" else Labelling(model, run)
