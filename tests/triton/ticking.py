"""A decoupled toy model `ticks`: N pieces, one each tenth of a second, for the text `N`."""

from __future__ import annotations

from pathlib import Path

from tests.triton.toy_models import write_model

MODEL = """
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
CONFIG = """
backend: "python"
max_batch_size: 1
model_transaction_policy { decoupled: true }
instance_group [ { kind: KIND_CPU count: 1 } ]
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def write_ticks(repository: Path) -> Path:
    """Add the model `ticks`."""
    write_model(repository, "ticks", CONFIG, MODEL)
    return repository
