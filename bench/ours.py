"""hfx's own ways without a server: the bare session that its backend opens, and a published model in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.encoder_peers import Case
from bench.peers.resident import Prepare, Run
from hfx import names
from hfx.local.encoder import LocalModel


def open_published(repository: str, name: str) -> Prepare:
    """The published encoder NAME; level "net" is its session alone, level "text" is LocalModel."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    model = LocalModel.open(Path(repository), name)

    def prepare(case: Case) -> Run:
        requests = [{names.TEXT_INPUT: text} for text in case.texts]
        if case.level == "text":
            return lambda: model.infer_all(requests)
        encoded = model.encode(requests)
        feed = {key: np.concatenate([each[key].reshape(-1) for each in encoded]) for key in model.layout.inputs}
        feed[names.ITEM_SHAPE] = np.array([each[names.INPUT_IDS].shape[1:] for each in encoded], np.int32)
        return lambda: model.session.run(feed, model.layout.outputs)

    return prepare


def token_counter(repository: Path, name: str) -> Callable[[str], int]:
    """How many tokens NAME_tokenize makes of a text."""
    from hfx.python_backends.encoding import open_encoder

    encoder = open_encoder(repository / (name + names.TOKENIZE_SUFFIX) / "1")

    def count(text: str) -> int:
        items = encoder.items({names.TEXT_INPUT: np.array([[text.encode()]], dtype=np.object_)})
        row = encoder.encode(items)[0]
        if isinstance(row, Exception):
            raise row
        return len(row.sequences[0].ids)

    return count
