"""Published encoder models in this process: the tokenizer, the net and the last step."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from hfx import names
from hfx.errors import ModelCorrupt, RequestRefused, UsageError
from hfx.local import (
    THREADS,
    Answer,
    Device,
    Kind,
    Request,
    Tensors,
    as_tensors,
    device_config,
    is_foreign,
    plain_answer,
    read_config,
    scalar_outputs,
)

Result = TypeVar("Result")


class LocalModel:
    """An open encoder, whose folders are NAME, NAME_tokenize, NAME_net and NAME_postprocess.

    The stages can be called one by one (`encode`, `run`, `answer`), or together by `infer`. Every request is one row.
    """

    def __init__(self, repository: Path, name: str, config: dict[str, Any], net: dict[str, Any], kind: Kind) -> None:
        from hfx.python_backends.encoding import open_encoder
        from hfx.python_backends.onnxruntime.config import ConfigError, model_file
        from hfx.python_backends.onnxruntime.ragged import Layout, check
        from hfx.python_backends.onnxruntime.sessions import open_session
        from hfx.python_backends.tasks import TASKS
        from hfx.python_backends.tasks.postprocessing import open_postprocessor

        self.name = name
        self.kind = kind
        self.max_batch_size = int(config["max_batch_size"])
        self.scalars = scalar_outputs(repository, name)
        try:
            self.encoder = open_encoder(repository / (name + names.TOKENIZE_SUFFIX) / "1")
        except (OSError, ValueError) as error:
            raise ModelCorrupt(f"{name} can't be opened: {error}.", "Export the model again.") from error
        file = model_file(net, repository / (name + names.NET_SUFFIX) / "1")
        try:
            self.session = open_session(net, file, kind, 0)
        except ConfigError as error:
            place, fix = (" on a GPU", "Use --device cpu.") if kind == "GPU" else ("", "")
            raise UsageError(f"{name} can't run{place} here: {error}.", fix) from error
        self.layout = Layout.read(net)
        rank = len(net["input"][0]["dims"])
        # Outputs with a value for each token, or for each mask: the dimension at the place of the inputs' sequence
        # dimension is -1.
        is_open = frozenset(o["name"] for o in net["output"] if [int(d) for d in o["dims"]][rank - 1 : rank] == [-1])
        self.mask_outputs = is_open if TASKS[self.encoder.settings.task].of_masks else frozenset[str]()
        self.token_outputs = is_open - self.mask_outputs
        self._running = threading.Lock()
        check(self.layout, net, self.session)
        last = repository / (name + names.POSTPROCESS_SUFFIX) / "1"
        self.postprocessor = open_postprocessor(last) if last.is_dir() else None

    @classmethod
    def open(
        cls, repository: Path, name: str, device: Device = "cpu", kind: Kind | None = None, threads: int | None = None
    ) -> LocalModel:
        """Open NAME as `--model-config-name=DEVICE` would serve it.

        `kind` runs the files of one device on another, and `threads` replaces the number in the configuration. Native
        operators run only if they are this installation's own.
        """
        names.check_name(name)
        config = read_config(repository / name / "config.pbtxt")
        net = device_config(repository / (name + names.NET_SUFFIX), device)
        if threads is not None:
            net = {**net, "parameters": {**net.get("parameters", {}), THREADS: {"string_value": str(threads)}}}
        net = _own_operators(net, repository / (name + names.NET_SUFFIX) / "1")
        return cls(repository, name, config, net, kind or ("GPU" if device == "gpu" else "CPU"))

    def encode(self, requests: Sequence[Request]) -> list[Tensors]:
        """Return NAME_tokenize's tensors for each request. Raises RequestRefused that names the first refused one."""
        return [_accepted(index, each) for index, each in enumerate(self.encode_each(requests))]

    def encode_each(self, requests: Sequence[Request]) -> list[Tensors | RequestRefused]:
        """Return the tensors of each request, or the reason why there are none."""
        from hfx.python_backends.encoding import tensors

        items = [self._item(request) for request in requests]
        found = iter(self.encoder.encode([item for item in items if not isinstance(item, RequestRefused)]))
        encoded = [item if isinstance(item, RequestRefused) else next(found) for item in items]
        rows = [
            row if isinstance(row, RequestRefused) else RequestRefused(f"{row}.") if isinstance(row, Exception) else row
            for row in encoded
        ]
        made = iter(tensors([[row] for row in rows if not isinstance(row, RequestRefused)], self.encoder.settings))
        return [row if isinstance(row, RequestRefused) else next(made) for row in rows]

    def _item(self, request: Request) -> Any:
        """Return the encoder's item for a request, or the RequestRefused that says why there is none."""
        from hfx.python_backends.errors import EngineError, InvalidInput

        try:
            return self.encoder.items(as_tensors(request))[0]
        except (InvalidInput, EngineError) as error:
            return RequestRefused(f"{error}.")
        except UsageError as error:
            return RequestRefused(error.message, error.fix)

    def run(self, encoded: Sequence[Tensors]) -> list[Tensors]:
        """Return the net's outputs for each request. Raises RequestRefused that names the first that can't be run."""
        return [_accepted(index, each) for index, each in enumerate(self.run_each(encoded))]

    def run_each(self, encoded: Sequence[Tensors]) -> list[Tensors | RequestRefused]:
        """Return the net's outputs for each request, or the reason why there are none.

        The net runs as many requests at once as a batch of the server holds: those of equal shapes together, or if it
        skips padding, in the order of the requests.
        """
        from hfx.python_backends.onnxruntime import ragged

        requests = [
            ragged.Request({name: request[name] for name in self.layout.inputs}, self.layout.outputs)
            for request in encoded
        ]
        order = list(range(len(requests)))
        if not self.session.skips_padding:
            order.sort(key=lambda index: encoded[index][self.layout.inputs[0]].shape)
        outputs: list[Tensors | RequestRefused] = [{} for _ in requests]
        for start in range(0, len(order), self.max_batch_size):
            members = order[start : start + self.max_batch_size]
            with self._running:
                answers = ragged.answer(self.session, self.layout, [requests[index] for index in members])
            for index, answer in zip(members, answers, strict=True):
                outputs[index] = (
                    RequestRefused(f"The net of {self.name} can't run it: {answer}.")
                    if isinstance(answer, Exception)
                    else answer
                )
        return outputs

    def answer(self, request: Request, encoded: Tensors, outputs: Tensors) -> Answer:
        """Run the last step on the net's outputs, and return the answer of NAME as plain values."""
        tensors: Mapping[str, NDArray[Any]] = outputs
        if self.postprocessor is not None:
            from hfx.python_backends.errors import InvalidInput

            try:
                tensors = self.postprocessor.answer({**as_tensors(request), **encoded, **outputs})
            except InvalidInput as refusal:
                raise RequestRefused(f"{refusal}.") from refusal
        return plain_answer({**tensors, names.TRUNCATED_TOKENS: encoded[names.TRUNCATED_TOKENS]}, self.scalars)

    def infer(self, request: Request) -> Answer:
        """Answer one request, for example `{"text_input": "..."}`. Raises RequestRefused."""
        answer = self.answer_each([request])[0]
        if isinstance(answer, RequestRefused):
            raise answer
        return answer

    def infer_all(self, requests: Sequence[Request]) -> list[Answer]:
        """Answer many requests, in order; the net runs them in batches."""
        return [_accepted(index, each) for index, each in enumerate(self.answer_each(requests))]

    def answer_each(self, requests: Sequence[Request]) -> list[Answer | RequestRefused]:
        """Return the answer to each request, or the reason why there is none, in order.

        The net runs requests of the same length together.
        """
        answers: list[Answer | RequestRefused] = []
        accepted: list[tuple[int, Tensors]] = []
        for index, encoded in enumerate(self.encode_each(requests)):
            answers.append(encoded if isinstance(encoded, RequestRefused) else {})
            if not isinstance(encoded, RequestRefused):
                accepted.append((index, encoded))
        accepted.sort(key=lambda entry: entry[1][self.layout.inputs[0]].shape)
        outputs = self.run_each([encoded for _, encoded in accepted])
        for (index, encoded), output in zip(accepted, outputs, strict=True):
            answers[index] = self._answer_or_refusal(requests[index], encoded, output)
        return answers

    def _answer_or_refusal(
        self, request: Request, encoded: Tensors, outputs: Tensors | RequestRefused
    ) -> Answer | RequestRefused:
        if isinstance(outputs, RequestRefused):
            return outputs
        try:
            return self.answer(request, encoded, outputs)
        except RequestRefused as refusal:
            return refusal


def _accepted(index: int, outcome: Result | RequestRefused) -> Result:
    if isinstance(outcome, RequestRefused):
        raise outcome.with_message(f"Request {index}: {outcome.message}")
    return outcome


def _own_operators(net: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the configuration of NAME_net without native operators that are not this installation's.

    Raises UsageError if the model's 8-bit weights would be multiplied wrongly without these operators.
    """
    from hfx.python_backends.engine.sessions import multiplies_bytes_exactly
    from hfx.python_backends.onnxruntime.config import OPERATORS, operators_of

    library, digest = operators_of(net)
    if not library or not is_foreign(folder / Path(library).name, digest):
        return net
    if not multiplies_bytes_exactly():
        raise UsageError("This processor has no VNNI, which the model's 8-bit weights need.", "Export the model here.")
    return {
        **net,
        "parameters": {key: value for key, value in net["parameters"].items() if not key.startswith(OPERATORS)},
    }
