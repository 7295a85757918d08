"""The output tensors of a generator, made of plain values."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb

_TYPES: dict[str, Any] = {
    "text_output": np.object_,
    "finish_reason": np.object_,
    "input_tokens": np.int32,
    "output_tokens": np.int32,
    "truncated_tokens": np.int32,
    "output_log_probs": np.float32,
}


def output(name: str, value: Any) -> Any:
    """The tensor [1, number of values] of a value, or of a sequence of them."""
    plain = value.encode() if isinstance(value, str) else value
    return pb.Tensor(name, np.array([plain], _TYPES[name]).reshape(1, -1))
