"""The peers: a text classifier as one would run it without hfx, each opened in a process of its own (processes.py).

torch and onnxruntime are there already; optimum-intel and what it needs are fetched once and put before the
environment's packages in its own process only, so torch, transformers and OpenVINO are the same for everybody.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cache import packages
from bench.processes import Prepare, Run

INTEL = (
    "optimum-intel==2.2.0",
    "optimum==2.3.0",
    "nncf==3.4.0",
    "scikit-learn==1.9.1",
    "joblib==1.6.0",
    "threadpoolctl==3.8.0",
    "cloudpickle==3.1.2",
    "narwhals==2.28.0",
    "pydot==4.0.1",
    "pyparsing==3.3.3",
    "tabulate==0.10.0",
    "ninja==1.13.2",
    "psutil==7.2.2",
)


@dataclass(frozen=True)
class Case:
    """`batch` times the same text; `level` is "text" (text in, label out) or "net" (tensors in, logits out)."""

    text: str
    batch: int
    level: str

    @property
    def texts(self) -> list[str]:
        """The batch."""
        return [self.text] * self.batch


def open_torch(checkpoint: str) -> Prepare:
    """The transformers pipeline on torch."""
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(os.cpu_count() or 1)
    return _prepare(AutoModelForSequenceClassification.from_pretrained(checkpoint).eval(), checkpoint)


def open_onnxruntime(checkpoint: str, folder: str, int8: bool) -> Prepare:
    """optimum's ORTModelForSequenceClassification, its weights by onnxruntime's quantize_dynamic where `int8`."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from optimum.onnxruntime import ORTModelForSequenceClassification

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    if not (Path(folder) / "model.onnx").is_file():
        ORTModelForSequenceClassification.from_pretrained(checkpoint, export=True).save_pretrained(folder)
    name = "model_quantized.onnx" if int8 else "model.onnx"
    if int8 and not (Path(folder) / name).is_file():
        quantize_dynamic(Path(folder) / "model.onnx", Path(folder) / name, weight_type=QuantType.QInt8)
    model = ORTModelForSequenceClassification.from_pretrained(folder, file_name=name, session_options=options)
    return _prepare(model, checkpoint)


def open_intel(checkpoint: str, fetched: str, int8: bool) -> Prepare:
    """optimum-intel's OVModelForSequenceClassification, its weights int8 (nncf) where `int8`."""
    _use_packages(fetched)
    from optimum.intel import OVModelForSequenceClassification

    model = OVModelForSequenceClassification.from_pretrained(checkpoint, export=True, load_in_8bit=int8)
    return _prepare(model, checkpoint)


def fetch_intel() -> str:
    """The folder of optimum-intel's packages. Raises FetchFailed."""
    return str(packages("peers", INTEL))


def _use_packages(folder: str) -> None:
    sys.path.insert(0, folder)
    # openvino reports its use to its maker, unless this package can't be imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def _prepare(model: Any, checkpoint: str) -> Prepare:
    import torch
    from transformers import AutoTokenizer, pipeline

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device=torch.device("cpu"))

    def prepare(case: Case) -> Run:
        if case.level == "text":
            return lambda: classify(case.texts, batch_size=case.batch)
        feed = {name: t for name, t in tokenizer(case.texts, return_tensors="pt").items() if name != "token_type_ids"}

        def run() -> object:
            with torch.inference_mode():
                return model(**feed).logits

        return run

    return prepare
