"""What an incomplete configuration gets from the ONNX file, as the C++ backend completes it.

Owns the rules only; the configuration object is Triton's.
"""

from __future__ import annotations

from typing import Any

from .config import DTYPES
from .sessions import Session, Tensor

DEFAULT_MAX_BATCH_SIZE = 4  # the C++ backend's default-max-batch-size

_DATA_TYPES = {dtype: name for name, dtype in DTYPES.items()}


def complete(auto: Any, session: Session) -> None:
    """Add inputs and outputs to `auto`; batching too, when the first of several dimensions of every tensor is free.

    A tensor of one dimension can't be batched: Triton refuses inputs and outputs without dims.
    """
    tensors = [*session.inputs, *session.outputs]
    batchable = all(len(tensor.shape) > 1 and tensor.shape[0] == -1 for tensor in tensors)
    if batchable and auto.as_dict()["max_batch_size"] == 0:
        auto.set_max_batch_size(DEFAULT_MAX_BATCH_SIZE)
        auto.set_dynamic_batching()
    skipped = 1 if batchable else 0
    for tensor in session.inputs:
        auto.add_input(_declared(tensor, skipped))
    for tensor in session.outputs:
        auto.add_output(_declared(tensor, skipped))


def _declared(tensor: Tensor, skipped: int) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "data_type": _DATA_TYPES[tensor.dtype.type],
        "dims": list(tensor.shape[skipped:]),
    }
