"""The net of a bi-encoder's labels (GLiNER): a vector for each label, which is kept for later requests."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tokenizer_file import open_tokenizer

# In NAME_tokenize/1: the graph, with flat inputs as those of NAME_net, and the tokenizer of the labels.
NET, TOKENIZER = "labels.onnx", "labels_tokenizer.json"
CACHED = 10_000  # vectors of 512 numbers take 20 MB


class LabelNet:
    """Makes the vectors of labels by ONNX Runtime, each label alone, so that they depend on no other label."""

    def __init__(self, folder: Path, longest: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(folder / NET), options, providers=["CPUExecutionProvider"])
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._tokenizer: Any = open_tokenizer(folder / TOKENIZER)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(longest)
        self._vector = lru_cache(CACHED)(self._compute)

    def vectors(self, labels: tuple[bytes, ...]) -> NDArray[np.float32]:
        """Return the vectors of `labels`, in UTF-8: [labels, numbers]."""
        return np.stack([self._vector(label) for label in labels])

    def _compute(self, label: bytes) -> NDArray[np.float32]:
        encoding = self._tokenizer.encode(label.decode())
        values = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
            "item_shape": [[len(encoding.ids)]],
        }
        feed = {name: np.array(values[name], np.int32) for name in self._inputs}
        made: NDArray[np.float32] = self._session.run(None, feed)[0][0]
        return made
