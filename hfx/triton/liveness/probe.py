"""What a liveness probe is: the cheapest request to each entry point, made from the model's own configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from .calls import call

TEXT = "hi"
SETTINGS = {"max_tokens": 1, "timeout_ms": 10_000}  # of generators, where their configuration lists them


@dataclass(frozen=True)
class Target:
    """A server's addresses: `http_url` is `http://HOST:PORT` or `socket_url(path)`; `metrics_url` may be empty."""

    http_url: str
    metrics_url: str = ""


@dataclass(frozen=True)
class Probe:
    """A cheap request to the entry point `model`; `workers` are the models that compute the answer."""

    model: str
    path: str
    body: bytes
    workers: tuple[str, ...]


def probes(target: Target) -> list[Probe]:
    """A probe for each entry point whose required inputs are all texts, by name; raises one of NO_ANSWER.

    Members of an ensemble with a probe are covered by it, and models that take other inputs by those that call them.
    The names are those of the statistics, which are open where the repository's index is not.
    """
    models = json.loads(call(f"{target.http_url}/v2/models/stats"))["model_stats"]
    names = sorted({model["name"] for model in models})
    configs = [json.loads(call(f"{target.http_url}{model_path(name)}/config")) for name in names]
    configs = [config for config in configs if _takes_texts_only(config)]
    covered = {step for config in configs for step in _steps(config)}
    return [_probe(config) for config in configs if config["name"] not in covered]


def _takes_texts_only(config: Mapping[str, Any]) -> bool:
    required = [tensor["data_type"] for tensor in config.get("input", ()) if not tensor.get("optional")]
    return bool(required) and set(required) == {"TYPE_STRING"}


def _steps(config: Mapping[str, Any]) -> list[str]:
    return [step["model_name"] for step in config.get("ensemble_scheduling", {}).get("step", ())]


def _probe(config: Mapping[str, Any]) -> Probe:
    name = config["name"]
    engine = config.get("parameters", {}).get("engine", {}).get("string_value", "")  # of a generator's relay
    workers = tuple(_steps(config)) or (name, *filter(None, [engine]))
    decoupled = config.get("model_transaction_policy", {}).get("decoupled")
    path, body = ("generate", _generate(config)) if decoupled else ("infer", _infer(config))
    return Probe(name, f"{model_path(name)}/{path}", json.dumps(body).encode(), workers)


def _generate(config: Mapping[str, Any]) -> dict[str, Any]:
    """The body for the generate endpoint: it adds shapes and types by itself."""
    values = {tensor["name"]: data for tensor, data in _values(config)}
    return {name: data[0] if len(data) == 1 else data for name, data in values.items()}


def _infer(config: Mapping[str, Any]) -> dict[str, Any]:
    batch = [1] if config.get("max_batch_size") else []
    inputs = [
        {
            "name": tensor["name"],
            "shape": [*batch, *_shape(tensor)],
            "datatype": "BYTES" if tensor["data_type"] == "TYPE_STRING" else "INT32",
            "data": data,
        }
        for tensor, data in _values(config)
    ]
    return {"inputs": inputs}


def _values(config: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], list[Any]]]:
    """The tensors to send with their elements: the required texts, and the settings that make an answer cheap."""
    values: list[tuple[Mapping[str, Any], list[Any]]] = []
    for tensor in config["input"]:
        if not tensor.get("optional"):
            values.append((tensor, [TEXT] * math.prod(_shape(tensor))))
        elif tensor["name"] in SETTINGS and tensor["data_type"] == "TYPE_INT32":
            values.append((tensor, [SETTINGS[tensor["name"]]]))
    return values


def _shape(tensor: Mapping[str, Any]) -> list[int]:
    return [max(1, int(length)) for length in tensor["dims"]]


def model_path(model: str) -> str:
    """The path of `model` in the V2 protocol."""
    return f"/v2/models/{quote(model, safe='')}"
