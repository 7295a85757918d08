"""A published encoder model in this process: the code and the files that Triton serves, without a server.

The parity gate, `hfx verify` and `hfx infer --local` run it. It knows nothing of torch and of how a model was exported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from google.protobuf.json_format import MessageToDict
from numpy.typing import NDArray

from hfx import names
from hfx.errors import ModelMissing, RequestRefused
from hfx.repository import parse_config

Device = Literal["cpu", "gpu"]
Kind = Literal["CPU", "GPU"]
Tensors = dict[str, NDArray[Any]]
Request = Mapping[str, Any]  # public input -> one row's value, or the list of its values: texts, numbers, booleans
Answer = dict[str, Any]  # public output -> one row's value


class LocalModel:
    """A model folder set NAME, NAME_tokenize, NAME_net, NAME_postprocess, opened.

    Stages can be called one by one (`encode`, `run`, `answer`), or all by `infer`. Every request is one row.
    """

    def __init__(self, repository: Path, name: str, config: dict[str, Any], net: dict[str, Any], kind: Kind) -> None:
        from hfx.python_backends.encoding import open_encoder
        from hfx.python_backends.onnxruntime.config import model_file
        from hfx.python_backends.onnxruntime.ragged import Layout, check
        from hfx.python_backends.onnxruntime.sessions import open_session
        from hfx.python_backends.postprocess.tasks import open_postprocessor

        self.name = name
        self.max_batch_size = int(config["max_batch_size"])
        self.scalars = _scalars(config)
        self.encoder = open_encoder(repository / (name + names.TOKENIZE_SUFFIX) / "1")
        self.session = open_session(net, model_file(net, repository / (name + names.NET_SUFFIX) / "1"), kind, 0)
        self.layout = Layout.read(net)
        rank = len(net["input"][0]["dims"])
        # Outputs with a value for each token: the dimension that is the sequence's in the inputs is open there, too.
        self.token_outputs = frozenset(
            o["name"] for o in net["output"] if [int(d) for d in o["dims"]][rank - 1 : rank] == [-1]
        )
        check(self.layout, net, self.session)
        last = repository / (name + names.POSTPROCESS_SUFFIX) / "1"
        self.postprocessor = open_postprocessor(last) if last.is_dir() else None

    @classmethod
    def open(cls, repository: Path, name: str, device: Device = "cpu", kind: Kind | None = None) -> LocalModel:
        """Open NAME as `--model-config-name=DEVICE` would serve it; `kind` runs the files of one device on another."""
        names.check_name(name)
        config = read_config(repository / name / "config.pbtxt")
        folder = repository / (name + names.NET_SUFFIX)
        chosen = folder / "configs" / f"{device}.pbtxt"
        net = read_config(chosen if chosen.is_file() else folder / "config.pbtxt")
        return cls(repository, name, config, net, kind or ("GPU" if device == "gpu" else "CPU"))

    def encode(self, requests: Sequence[Request]) -> list[Tensors]:
        """The tensors that NAME_tokenize makes of each request. Raises RequestRefused naming the first refused one."""
        from hfx.python_backends.encoding import InvalidInput, tensors

        items = [self.encoder.items(as_tensors(request))[0] for request in requests]
        encoded = []
        for index, row in enumerate(self.encoder.encode(items)):
            if isinstance(row, InvalidInput):
                raise RequestRefused(f"Request {index}: {row}.", "Correct the text; nothing was answered.")
            encoded.append(tensors([row], self.encoder.settings))
        return encoded

    def run(self, encoded: Sequence[Tensors]) -> list[Tensors]:
        """The net's outputs of each request; as many at once as a batch of the server holds."""
        from hfx.python_backends.onnxruntime import ragged

        requests = [
            ragged.Request({name: request[name] for name in self.layout.inputs}, self.layout.outputs)
            for request in encoded
        ]
        outputs: list[Tensors] = []
        for start in range(0, len(requests), self.max_batch_size):
            for found in ragged.answer(self.session, self.layout, requests[start : start + self.max_batch_size]):
                if isinstance(found, Exception):
                    raise RequestRefused(f"The net of {self.name} refused a request: {found}.") from found
                outputs.append(found)
        return outputs

    def answer(self, request: Request, encoded: Tensors, outputs: Tensors) -> Answer:
        """What NAME answers: the last step on the net's outputs, as plain values."""
        found: Mapping[str, NDArray[Any]] = outputs
        if self.postprocessor is not None:
            from hfx.python_backends.postprocess.inputs import InvalidInput

            try:
                found = self.postprocessor.answer({**as_tensors(request), **encoded, **outputs})
            except InvalidInput as refusal:
                raise RequestRefused(f"{refusal}.") from refusal
        return plain_answer({**found, names.TRUNCATED_TOKENS: encoded[names.TRUNCATED_TOKENS]}, self.scalars)

    def infer(self, request: Request) -> Answer:
        """Answer one request, for example `{"text_input": "..."}`."""
        encoded = self.encode([request])
        return self.answer(request, encoded[0], self.run(encoded)[0])

    def infer_all(self, requests: Sequence[Request]) -> list[Answer]:
        """Answer many requests, in order; the net runs them in batches."""
        encoded = self.encode(requests)
        return [self.answer(r, e, o) for r, e, o in zip(requests, encoded, self.run(encoded), strict=True)]


def scalar_outputs(repository: Path, name: str) -> frozenset[str]:
    """The outputs of NAME that have one value a row: an answer has them as a value, the others as a list."""
    return _scalars(read_config(repository / name / "config.pbtxt"))


def plain_answer(tensors: Mapping[str, NDArray[Any]], scalars: frozenset[str]) -> Answer:
    """The first row of output tensors as plain values: text, numbers, lists of them."""
    return {name: _plain(value[0], name in scalars) for name, value in tensors.items()}


def as_tensors(request: Request) -> Tensors:
    """One row's values as the tensors `[1, n]` that Triton would hand over."""
    tensors: Tensors = {}
    for name, value in request.items():
        values = list(value) if isinstance(value, list | tuple) else [value]
        if all(isinstance(each, bool) for each in values):
            tensors[name] = np.array([values], np.bool_)
        elif all(isinstance(each, int) for each in values):
            tensors[name] = np.array([values], np.int32)
        else:
            texts = [each.encode() for each in values]
            tensors[name] = np.array([texts], dtype=np.object_).reshape(1, len(texts))
    return tensors


def _plain(row: NDArray[Any], scalar: bool) -> Any:
    values = [v.decode() if isinstance(v, bytes) else v for v in row.tolist()]
    return values[0] if scalar else values


def _scalars(config: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(o["name"] for o in config["output"] if [int(d) for d in o["dims"]] == [1])


def read_config(path: Path) -> dict[str, Any]:
    """A config.pbtxt as plain values, under protobuf's names. Raises ModelMissing where there is none."""
    if not path.is_file():
        raise ModelMissing(
            f"There is no model {path.parent.name} in {path.parent.parent} ({path.name} is missing).",
            "`hfx list` shows what there is.",
        )
    config: dict[str, Any] = MessageToDict(
        parse_config(path.read_text(encoding="utf-8")), preserving_proto_field_name=True
    )
    return {"input": [], "output": [], "max_batch_size": 0, **config}
