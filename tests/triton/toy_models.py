"""Tiny real Triton models for tests of servers and clients: numpy only, no checkpoint.

`write_toy(repository)` makes the ensemble `toy` (a text-classification by its tensors) = `toy_tokenize`, a Python model
whose text is its order: `sleep S`, `refuse WHY`, anything else is answered by its length.
"""

from __future__ import annotations

from pathlib import Path

MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb.get_input_tensor_by_name(request, "text_input").as_numpy()[0, 0].decode()
        top_k = pb.get_input_tensor_by_name(request, "top_k")
        order, _, rest = text.partition(" ")
        if order == "refuse":
            return pb.InferenceResponse(error=pb.TritonError(rest, pb.TritonError.INVALID_ARG))
        if order == "sleep":
            time.sleep(float(rest))
        count = 1 if top_k is None else int(top_k.as_numpy()[0, 0])
        labels = np.array([[f"{len(text)} characters".encode()] * count], np.object_)
        return pb.InferenceResponse([
            pb.Tensor("label", labels),
            pb.Tensor("score", np.linspace(1, 0, count, dtype=np.float32)[None]),
            pb.Tensor("truncated_tokens", np.array([[0]], np.int32)),
        ])
"""
TENSORS = """
max_batch_size: 8
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "top_k" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
]
output [
  { name: "label" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "score" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "truncated_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
]
"""
PYTHON = 'backend: "python"\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n' + TENSORS
NAMES = ("label", "score", "truncated_tokens")


def write_model(repository: Path, name: str, config: str, model: str = "") -> Path:
    """A model folder with version 1; without MODEL (an ensemble) the version is empty."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (version / ("model.py" if model else ".keep")).write_text(model)
    return repository / name


def loading(*statements: str) -> str:
    """MODEL, which runs `statements` when it is loaded."""
    body = "".join(f"        {statement}\n" for statement in statements)
    return MODEL.replace("    def execute", f"    def initialize(self, args):\n{body}\n    def execute", 1)


def ensemble(member: str) -> str:
    """The configuration of an ensemble whose only step is MEMBER."""
    inputs = "".join(f' input_map {{ key: "{name}" value: "{name}" }}' for name in ("text_input", "top_k"))
    outputs = "".join(f' output_map {{ key: "{name}" value: "{name}" }}' for name in NAMES)
    step = f'{{ model_name: "{member}" model_version: -1{inputs}{outputs} }}'
    return f'platform: "ensemble"\n{TENSORS}\nensemble_scheduling {{ step [ {step} ] }}\n'


def write_toy(repository: Path, name: str = "toy", queue: str = "") -> Path:
    """The ensemble NAME and its member; QUEUE is the text of the member's default_queue_policy."""
    batching = f"dynamic_batching {{ default_queue_policy {{ {queue} }} }}\n" if queue else "dynamic_batching { }\n"
    write_model(repository, f"{name}_tokenize", PYTHON + batching, MODEL)
    write_model(repository, name, ensemble(f"{name}_tokenize"))
    return repository
