"""What a published model needs: bytes and operations, of its encoder and of each step of its decoder.

Owns which files those are. It must not know what the machine can do.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from bench.machine.weights import NONE, Weights, read_weights
from hfx.errors import UsageError
from hfx.names import GENERATION_TASKS, NET_SUFFIX, STREAM_SUFFIX, TOKENIZE_SUFFIX
from hfx.perf.load import Request, RequestSet
from hfx.repository.catalog import model as read_model

MOST_COUNTED = 256  # requests whose tokens are counted


@dataclass(frozen=True)
class Needs:
    """`encoder` is used once for each token that is read (a decoder-only model has none), `decoder` for each written.

    A net that only reads, such as a classifier, is all encoder.
    """

    encoder: Weights
    decoder: Weights


def needs(repository: Path, name: str, device: str = "cpu") -> Needs | None:
    """The needs of model NAME for DEVICE, from its graphs; None for a model that has no such files.

    Attention's products of activations are left out: they need no weights, and grow with the text.
    """
    manifest = read_model(repository, name)
    if manifest.task in GENERATION_TASKS:
        return of_generator(repository / (name + STREAM_SUFFIX) / "1" / device)
    precision = manifest.precision.cpu if device == "cpu" else manifest.precision.gpu
    folder = repository / (name + NET_SUFFIX) / "1"
    found = [path for path in (folder / f"model.{precision}.onnx", folder / "model.onnx") if path.is_file()]
    return Needs(read_weights(found[0]), NONE) if found else None


def of_generator(folder: Path) -> Needs | None:
    """The needs of the engine in FOLDER, of its decoder for the fewest beams; None without one."""
    try:
        files = json.loads((folder / "engine.json").read_text(encoding="utf-8"))["files"]
    except OSError:
        return None
    encoder = NONE if files["encoder"] is None else read_weights(folder / files["encoder"])
    decoders = files["decoder"]
    return Needs(encoder, read_weights(folder / decoders[min(decoders, key=int)]))


def tokens_read(repository: Path, name: str, asks: RequestSet) -> float:
    """How many tokens an encoder reads for an average request of ASKS, by its published tokenizer.

    Of several sequences (hypotheses, windows) all are read. Raises UsageError for a request that it does not take.
    """
    import numpy as np

    from hfx.python_backends.encoding import open_encoder

    encoder = open_encoder(repository / (name + TOKENIZE_SUFFIX) / "1")

    def count(ask: Request) -> int:
        texts = {tensor: values for tensor, values in ask.inputs.items() if all(isinstance(v, str) for v in values)}
        tensors = {
            tensor: np.array([[str(value).encode() for value in values]], dtype=np.object_)
            for tensor, values in texts.items()
        }
        found = 0
        for row in encoder.encode(encoder.items(tensors)):
            if isinstance(row, Exception):
                raise UsageError(f"A request can't be counted in tokens: {row}.", "Correct it.")
            found += sum(len(sequence.ids) for sequence in row.sequences)
        return found

    return statistics.fmean(count(ask) for ask in asks.items[:MOST_COUNTED])
