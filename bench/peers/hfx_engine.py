"""hfx without a server: what `hfx export` publishes, opened in a process. The variant is the CPU's runtime.

fp16 runs on a GPU; the variant "tensorrt" runs an encoder's fp16 file in ONNX Runtime's TensorRT provider.

Token ids go to the engine with a slot for each row; texts of a classifier through all stages of the published model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.child import Run
from bench.exports import NAME, export, sources
from bench.packages import Packages
from bench.peers import Batch, Ids, Model
from hfx import names
from hfx.local import Device

PACKAGES: tuple[Packages, ...] = ()
CONVERTED_VARIANTS = ("onnxruntime", "native")
SOURCES = sources()
TENSORRT = "tensorrt"


def convert(model: Model, folder: str, precision: str, variant: str) -> None:
    """`hfx export`, for the runtime of the variant."""
    export(folder, model.folder, precision, runtime=variant or "auto")


def _with_tensorrt(model: Any, repository: Path) -> None:
    """Open the net of a LocalModel again, in the TensorRT provider. Raises ConfigError where it can't be started."""
    from hfx.local import device_config
    from hfx.python_backends.onnxruntime.config import model_file
    from hfx.python_backends.onnxruntime.sessions import open_session

    folder = repository / (NAME + names.NET_SUFFIX)
    accelerators = {"gpu_execution_accelerator": [{"name": TENSORRT, "parameters": {"precision_mode": "FP16"}}]}
    config = device_config(folder, "gpu") | {"optimization": {"execution_accelerators": accelerators}}
    model.session = open_session(config, model_file(config, folder / "1"), "GPU", 0)


def open_net(model: Model, folder: str, precision: str, threads: int, variant: str) -> Net | Encoder:
    """The published model."""
    if model.kind in ("classifier", "embedder"):
        return Encoder(folder, "gpu" if precision == "fp16" else "cpu", variant == TENSORRT)
    return Net(model, folder, "CUDA" if precision == "fp16" else "CPU", threads, variant or None)


class Net:
    """The engine, opened for each number of slots."""

    def __init__(self, model: Model, folder: str, provider: str, threads: int, runtime: str | None) -> None:
        self._folder = Path(folder) / (NAME + names.STREAM_SUFFIX) / "1" / ("cpu" if provider == "CPU" else "gpu")
        self._provider, self._threads, self._runtime = provider, threads, runtime
        self._start = () if model.start is None else (model.start,)
        self._engines: dict[int, Any] = {}

    def generate(self, prompts: Sequence[Ids], batch: Batch) -> list[Ids]:
        """The new ids of each row; without end tokens, none ends early."""
        from hfx.python_backends.engine.engine import Engine
        from hfx.python_backends.engine.request import Request, Settings

        slots = len(prompts) * batch.beams
        if slots not in self._engines:
            self._engines[slots] = Engine.open(
                self._folder,
                slots=slots,
                max_queue=slots,
                threads=self._threads,
                provider=self._provider,
                runtime=self._runtime,
                prefix_cache_mb=0,  # the same prompts come again and again
                guesses=False,  # random weights repeat themselves: guesses would be right as they are for no text
            )
        settings = Settings(
            max_tokens=batch.new, num_beams=batch.beams, no_repeat_ngram_size=batch.ngram, decoder_prompt=self._start
        )
        handles = [self._engines[slots].submit(Request(tuple(prompt), settings)) for prompt in prompts]
        return [handle.result()[0].ids for handle in handles]


class Encoder:
    """All stages one after the other, or the session of the net alone."""

    def __init__(self, repository: str, device: Device, tensorrt: bool) -> None:
        from hfx.local.encoder import LocalModel

        self._model = LocalModel.open(Path(repository), NAME, device)
        if tensorrt:
            _with_tensorrt(self._model, Path(repository))

    def labels(self, texts: Sequence[str]) -> list[str]:
        """The likeliest label of each text."""
        answers = self._model.infer_all([{names.TEXT_INPUT: text} for text in texts])
        return [answer[names.LABEL][0] for answer in answers]

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The embedding of each text."""
        answers = self._model.infer_all([{names.TEXT_INPUT: text} for text in texts])
        return np.stack([answer[names.EMBEDDING] for answer in answers]).astype(np.float32)

    def net(self, texts: Sequence[str]) -> Run:
        """The session that the backend opens, on tensors that are ready; on a CPU in runs as large as the backend's."""
        from hfx.python_backends.onnxruntime.ragged import MAX_ELEMENTS

        model = self._model
        encoded = model.encode([{names.TEXT_INPUT: text} for text in texts])
        tokens = sum(each[names.INPUT_IDS].size for each in encoded)
        size = max(1, MAX_ELEMENTS * len(encoded) // tokens) if model.kind == "CPU" else len(encoded)
        feeds = [
            {key: np.concatenate([each[key].reshape(-1) for each in part]) for key in model.layout.inputs}
            | {names.ITEM_SHAPE: np.array([each[names.INPUT_IDS].shape[1:] for each in part], np.int32)}
            for part in (encoded[at : at + size] for at in range(0, len(encoded), size))
        ]
        return lambda: [model.session.run(feed, model.layout.outputs) for feed in feeds]
