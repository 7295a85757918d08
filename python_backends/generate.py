"""Triton adapter of NAME_stream: one engine for all callers; pieces of text where `stream` is set, else one response.

Owns requests, responses and their cancellation. `execute` only hands requests over, so that the next ones may come
while these run; an event loop in a thread of its own sends what the engine makes. What a field means is decided in
`generation`.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

# Threads of the tokenizer would take the engine's cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import triton_python_backend_utils as pb

from .engine.errors import DeadlineExceeded, DoesNotFit, Draining, EngineError, InvalidRequest, QueueFull
from .generation.fields import ALIASES, ENGINE_FIELDS, TEXT_FIELDS
from .generation.generator import TextGenerator
from .generation.results import Generated, Piece, joined

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
FIELDS = (*ENGINE_FIELDS, *TEXT_FIELDS, *ALIASES)
LISTS = ("stop_words",)
EARLY_STOPPING = {"true": True, "false": False}  # the third value is "never"
POLL_SECONDS = 0.05  # how soon a caller's leaving is seen; asking costs 54 us, so not at each piece
# Names in pb.TritonError, which is not there yet while the stub imports this file.
CODES = (
    (InvalidRequest, "INVALID_ARG"),
    (DoesNotFit, "INVALID_ARG"),
    (QueueFull, "UNAVAILABLE"),
    (Draining, "UNAVAILABLE"),
    (DeadlineExceeded, "CANCELLED"),
)


class TritonPythonModel:
    """The engine's instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model of the version folder as the configuration's parameters say."""
        parameters = {k: v["string_value"] for k, v in json.loads(args["model_config"])["parameters"].items()}
        self.generator = TextGenerator.open(
            Path(args["model_repository"]) / args["model_version"],
            device=parameters["device"],
            slots=int(parameters["slots"]),
            max_queue=int(parameters["max_queue_size"]),
            threads=int(parameters["intra_op_thread_count"]),
        )
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="responses")
        self.thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Take the requests; their responses come later."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                fields = _fields(request)
            except InvalidRequest as refusal:
                sender.send(_refused(refusal), flags=FINAL)
                continue
            asyncio.run_coroutine_threadsafe(self._answer(fields, sender), self.loop)

    def finalize(self) -> None:
        """End what runs, each with its error, and let go of the model."""
        self.generator.close()
        asyncio.run_coroutine_threadsafe(self._rest(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    async def _rest(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, fields: dict[str, Any], sender: Any) -> None:
        try:
            text, streams = fields.pop("text_input"), fields.pop("stream", False)
            # In a thread: a long text takes a while to tokenize, a new number of beams opens a decoder.
            async with await asyncio.to_thread(self.generator.stream, text, **fields) as stream:
                watch = asyncio.create_task(_cancel_with(sender, stream))
                try:
                    await (_send_pieces if streams else _send_whole)(stream, sender)
                finally:
                    watch.cancel()
        except EngineError as error:
            sender.send(_refused(error), flags=FINAL)
        except Exception as error:  # a bug: the caller must not wait for ever
            pb.Logger.log_error(f"a request ended with {error!r}")
            sender.send(_refused(error), flags=FINAL)


async def _send_pieces(stream: Any, sender: Any) -> None:
    """Each piece as it comes; the final flag rides on the last one."""
    async for piece in stream:
        sender.send(_response(piece), flags=FINAL if piece.finish_reason else 0)


async def _send_whole(stream: Any, sender: Any) -> None:
    texts = joined([piece async for piece in stream])
    sender.send(_response(texts[0]), flags=FINAL)


async def _cancel_with(sender: Any, stream: Any) -> None:
    while not sender.is_cancelled():
        await asyncio.sleep(POLL_SECONDS)
    stream.cancel()


def _fields(request: Any) -> dict[str, Any]:
    """The tensors of a request as the fields of TextGenerator, and text_input and stream."""
    given: dict[str, Any] = {}
    for name in ("text_input", "stream", *FIELDS):
        tensor = pb.get_input_tensor_by_name(request, name)
        if tensor is not None:
            given[name] = _value(name, tensor.as_numpy().reshape(-1))
    if "text_input" not in given:
        raise InvalidRequest("text_input", None, "one text")
    if given.get("num_return_sequences", 1) != 1:
        raise InvalidRequest(
            "num_return_sequences", given["num_return_sequences"], "1; send the request again for more"
        )
    early = given.get("early_stopping")
    if early is not None:
        given["early_stopping"] = EARLY_STOPPING.get(early, early)
    return given


def _value(name: str, array: Any) -> Any:
    values = [_decoded(name, value) if isinstance(value, bytes) else value for value in array.tolist()]
    if name in LISTS:
        return values
    if len(values) != 1:
        raise InvalidRequest(name, values, "one value")
    return values[0]


def _decoded(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, raw[:40], f"UTF-8; {error.reason} at byte {error.start}") from None


def _response(found: Piece | Generated) -> Any:
    def tensor(name: str, value: Any, dtype: Any) -> Any:
        return pb.Tensor(name, np.array([value], dtype).reshape(1, -1))

    return pb.InferenceResponse(
        [
            tensor("text_output", found.text.encode(), np.object_),
            tensor("finish_reason", (found.finish_reason or "").encode(), np.object_),
            tensor("input_tokens", found.input_tokens, np.int32),
            tensor("output_tokens", found.output_tokens, np.int32),
            tensor("truncated_tokens", found.truncated_tokens, np.int32),
            tensor("output_log_probs", found.log_probs or (), np.float32),
        ]
    )


def _refused(error: Exception) -> Any:
    code = next((code for kind, code in CODES if isinstance(error, kind)), "INTERNAL")
    return pb.InferenceResponse(error=pb.TritonError(str(error), getattr(pb.TritonError, code)))
