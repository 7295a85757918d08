"""optimum-intel: OpenVINO's runtime under transformers' generate, weights by nncf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.generation_cases import THREADS, Model
from bench.peers_generation import packages
from bench.peers_generation.generate import model_class, prepared
from bench.processes import Prepare

# One scale for each group of a row's activations: 128 is the fastest for batches, 32 (the default) for a row of int4.
GROUPS = {"int8": "128", "int4": "32"}


BITS: dict[str, dict[str, Any]] = {
    "int8": {"bits": 8, "sym": False},
    "int4": {"bits": 4, "sym": True, "group_size": 128, "ratio": 1.0, "group_size_fallback": "ignore"},
}


def convert(model: Model, folder: str, fetched: str, precision: str) -> None:
    """The checkpoint as OpenVINO files; with int4 weights, the embedding and the head stay int8."""
    export(model, folder, fetched, BITS[precision])


def export(model: Model, folder: str, fetched: str, bits: Mapping[str, Any]) -> None:
    """The same with `bits` for nncf."""
    packages.use(fetched)
    import optimum.intel

    quantization = optimum.intel.OVWeightQuantizationConfig(**bits)
    kind = getattr(optimum.intel, model_class(model, "OV"))
    net = kind.from_pretrained(model.checkpoint, export=True, compile=False, quantization_config=quantization)
    net.save_pretrained(folder)


def open_way(model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """The converted model for a single stream of requests."""
    packages.use(fetched)
    import optimum.intel

    kind = getattr(optimum.intel, model_class(model, "OV"))
    return prepared(kind.from_pretrained(folder, ov_config=properties(precision)), model)


def properties(precision: str) -> dict[str, str]:
    """What the compiled model is asked for."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": str(THREADS),
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUPS[precision],
    }
