"""Tiny real Triton models for tests of servers and clients, with numpy only and no checkpoint.

`write_toy(repository)` makes the ensemble `toy` (a text-classification by its tensors) = `toy_tokenize`, a Python model
whose text is a command: `sleep S`, `refuse WHY`; it answers any other text by its length. `write_ticks(repository)`
makes `ticks`, a decoupled model: N pieces, one each tenth of a second, for the text `N`.
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
    """Write a model folder with version 1; without `model` (an ensemble) the version is empty."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (version / ("model.py" if model else ".keep")).write_text(model)
    return repository / name


def loading(*statements: str) -> str:
    """Return MODEL with `statements` that run when it is loaded."""
    body = "".join(f"        {statement}\n" for statement in statements)
    return MODEL.replace("    def execute", f"    def initialize(self, args):\n{body}\n    def execute", 1)


def write_flaky(repository: Path, flag: Path) -> Path:
    """Write the model `flaky`, which does not load while the file `flag` exists."""
    statements = (f"if os.path.exists({str(flag)!r}):", "    raise ValueError('the flag is set')")
    write_model(repository, "flaky", PYTHON, loading("import os", *statements))
    return repository


def ensemble(member: str) -> str:
    """Return the configuration of an ensemble with the single step `member`."""
    inputs = "".join(f' input_map {{ key: "{name}" value: "{name}" }}' for name in ("text_input", "top_k"))
    outputs = "".join(f' output_map {{ key: "{name}" value: "{name}" }}' for name in NAMES)
    step = f'{{ model_name: "{member}" model_version: -1{inputs}{outputs} }}'
    return f'platform: "ensemble"\n{TENSORS}\nensemble_scheduling {{ step [ {step} ] }}\n'


def write_toy(repository: Path, name: str = "toy", queue: str = "") -> Path:
    """Write the ensemble `name` and its member; `queue` is the text of the member's default_queue_policy."""
    batching = f"dynamic_batching {{ default_queue_policy {{ {queue} }} }}\n" if queue else "dynamic_batching { }\n"
    write_model(repository, f"{name}_tokenize", PYTHON + batching, MODEL)
    write_model(repository, name, ensemble(f"{name}_tokenize"))
    return repository


TICKING = """
import threading
import time
import numpy as np
import triton_python_backend_utils as pb

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb.get_input_tensor_by_name(request, "text_input").as_numpy()[0, 0].decode()
            count = int(text) if text.isdigit() else 1
            threading.Thread(target=self.tick, args=(count, request.get_response_sender())).start()

    def tick(self, count, sender):
        for number in range(count):
            time.sleep(0.1)
            tensor = pb.Tensor("text_output", np.array([[str(number).encode()]], np.object_))
            sender.send(pb.InferenceResponse([tensor]), flags=FINAL if number == count - 1 else 0)
"""
TICKING_CONFIG = """
backend: "python"
max_batch_size: 1
model_transaction_policy { decoupled: true }
instance_group [ { kind: KIND_CPU count: 1 } ]
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def write_ticks(repository: Path) -> Path:
    """Add the model `ticks`."""
    write_model(repository, "ticks", TICKING_CONFIG, TICKING)
    return repository
