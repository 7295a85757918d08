"""The library gliner, in torch and on the ONNX files of its own export, fp32 or int8 by onnxruntime's quantize_dynamic.

`pip install --no-deps --target FOLDER gliner==0.2.29` is what `python -m bench.peers install gliner` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil

from bench.child import Prepare
from bench.packages import Packages, use

GLINER = Packages("gliner", ("gliner==0.2.29",))
FILES = {"onnx fp32": "model.onnx", "onnx int8": "model_quantized.onnx"}


@dataclass(frozen=True)
class Texts:
    """Texts that are read together, and what is looked for in each."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    threshold: float


@dataclass(frozen=True)
class Found:
    """The number of entities in all texts, the bytes of the process's memory, and the seconds of parts."""

    entities: int
    memory: int
    parts: tuple[tuple[str, float], ...] = ()


def memory() -> int:
    """The bytes of this process that are in memory now."""
    return int(psutil.Process().memory_info().rss)


def convert(folder: str, checkpoint: str) -> None:
    """`export_to_onnx`, with both files."""
    use([GLINER])
    from gliner import GLiNER

    GLiNER.from_pretrained(checkpoint).export_to_onnx(folder, quantize=True)


def open_library(checkpoint: str, onnx: str, runtime: str, threads: int) -> Prepare:
    """The checkpoint in torch, or a file of FILES in the folder `onnx`."""
    use([GLINER])
    import torch
    from gliner import GLiNER

    torch.set_num_threads(threads)
    if runtime in FILES:
        net: Any = GLiNER.from_pretrained(onnx, runtime="onnxruntime", runtime_model_file=FILES[runtime])
    else:
        net = GLiNER.from_pretrained(checkpoint).eval()

    def prepare(case: Texts) -> Any:
        labels, size = list(case.labels), len(case.texts)

        def run() -> Found:
            if size == 1:
                found = [net.predict_entities(case.texts[0], labels, threshold=case.threshold)]
            else:
                found = net.inference(list(case.texts), labels, threshold=case.threshold, batch_size=size)
            return Found(sum(map(len, found)), memory())

        return run

    return prepare
