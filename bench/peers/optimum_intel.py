"""optimum-intel: OpenVINO's runtime under transformers' generate and pipelines, weights by nncf.

By default OpenVINO computes in bfloat16 what has no integers where the processor can; fp32 is float32 all through, and
so are others with the variant "f32".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.packages import TRANSFORMERS_4, Packages
from bench.peers import Batch, Ids, Model
from bench.peers.transformers_api import Classifying, Embedding, Generating, wrapped

INTEL = Packages("peers", (
    "openvino==2026.4.1", "optimum-intel==2.2.0", "optimum==2.3.0", "nncf==3.4.0", "scikit-learn==1.9.1",
    "joblib==1.6.0", "threadpoolctl==3.8.0", "cloudpickle==3.1.2", "narwhals==2.28.0", "pydot==4.0.1",
    "pyparsing==3.3.3", "tabulate==0.10.0", "ninja==1.13.2", "psutil==7.2.2",
))  # fmt: skip
PACKAGES = (INTEL, TRANSFORMERS_4)
# A scale for each group of a row's activations: 128 is the fastest for batches, 32 (the default) for a row of int4.
GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
GROUPS = {"int8": ("128", "128"), "int4": ("32", "128")}  # (of one row, of several)
BITS: dict[str, dict[str, Any]] = {
    "int8": {"bits": 8, "sym": False},
    "int4": {"bits": 4, "sym": True, "group_size": 128, "ratio": 1.0, "group_size_fallback": "ignore"},
}


def convert(model: Model, folder: str, precision: str, variant: str) -> None:
    """OpenVINO's files; of int4, embedding and head stay int8 except for the variant "head"."""
    import optimum.intel

    bits = {**BITS.get(precision, {}), **({"all_layers": True} if variant == "head" else {})}
    config = optimum.intel.OVWeightQuantizationConfig(**bits) if bits else None
    options: dict[str, Any] = {"quantization_config": config} if bits else {"load_in_8bit": False}
    kind = getattr(optimum.intel, f"OV{model.auto_class}")
    kind.from_pretrained(model.folder, export=True, compile=False, **options).save_pretrained(folder)


def open_net(
    model: Model, folder: str, precision: str, threads: int, variant: str
) -> Net | Generating | Classifying | Embedding:
    """The converted model for a single stream of requests."""
    if model.kind in ("classifier", "embedder"):  # activations of int8 by OpenVINO's defaults
        options = properties(precision, threads, variant=variant)
        options.pop(GROUP, None)
        return wrapped(_opened(model, folder, options), model)
    return Net(model, folder, precision, threads, variant)


class Net:
    """The generator, compiled again where another number of rows wants other properties."""

    def __init__(self, model: Model, folder: str, *options: Any) -> None:
        self._model, self._folder, self._options = model, folder, options
        self._nets: dict[str, Generating] = {}
        self._net(rows=1)

    def generate(self, prompts: Sequence[Ids], batch: Batch) -> list[Ids]:
        """The new ids of each row."""
        return self._net(len(prompts) * batch.beams).generate(prompts, batch)

    def _net(self, rows: int) -> Generating:
        precision, threads, variant = self._options
        options = properties(precision, threads, rows, variant)
        group = options.get(GROUP, "")
        if group not in self._nets:
            self._nets[group] = Generating(_opened(self._model, self._folder, options), self._model)
        return self._nets[group]


def properties(precision: str, threads: int, rows: int = 1, variant: str = "") -> dict[str, str]:
    """What a model is compiled for where it mostly computes `rows` at once."""
    found = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(threads)}
    if variant == "f32" or precision == "fp32":
        found["INFERENCE_PRECISION_HINT"] = "f32"
    return {**found, GROUP: GROUPS[precision][rows > 1]} if precision in GROUPS else found


def _opened(model: Model, folder: str, options: dict[str, str]) -> Any:
    import optimum.intel

    return getattr(optimum.intel, f"OV{model.auto_class}").from_pretrained(folder, ov_config=options)
