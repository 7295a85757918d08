"""Child: run the graph in a file twice for rows of unequal lengths, and print what the second run did."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from hfx.python_backends.engine.sessions import PROVIDERS
from tests.rigs.machine.cuda_host import counted

LENGTHS, WIDTH = np.array([32, 9, 3], np.int32), 32
SIZES = {"requests": len(LENGTHS), "rows": len(LENGTHS), "source": WIDTH, "width": WIDTH}
TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


def value(tensor: Any) -> NDArray[Any]:
    """Return what the graph gets as an input."""
    known = {
        "seqlens_k": LENGTHS - 1,
        "total_length": np.array(WIDTH, np.int32),
        "attention_mask": (np.arange(WIDTH) < LENGTHS[:, None]).astype(np.int32),
    }
    if tensor.name in known:
        return known[tensor.name]
    return np.ones([SIZES[size] for size in tensor.shape], TYPES[tensor.type])


session = onnxruntime.InferenceSession(sys.argv[1], providers=[PROVIDERS["CUDA"], PROVIDERS["CPU"]])
feed = {tensor.name: value(tensor) for tensor in session.get_inputs()}
session.run(None, feed)
counted()
session.run(None, feed)
print(json.dumps(counted()))
