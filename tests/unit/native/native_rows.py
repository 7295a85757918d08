"""The backend's row code in C++, from a request to its tensors and its answer, compiled with rows_interface.cpp."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.native import build
from hfx.python_backends.errors import InvalidInput
from tests.unit.native.libraries import NATIVE, shared_library

HERE = Path(__file__).parent
OWN = ("answer", "encode", "json", "parameters", "pieces", "queue", "refusals", "rows", "scores", "settings")
SOURCES = (
    *sorted((NATIVE / "tokenizer").glob("*.cpp")),
    *(NATIVE / "backend" / f"{name}.cpp" for name in OWN),
    HERE / "rows_interface.cpp",
)
FLAGS = (*build.FLAGS.split(), "-O1", f"-I{NATIVE}", *os.environ.get("HFX_NATIVE_TEST_FLAGS", "").split())
KINDS = {str: 0, int: 1, bool: 2, float: 4}  # as Triton's C interface counts the types of parameters

Tensors = Mapping[str, NDArray[Any]]


def compiled() -> ctypes.CDLL:
    """Return the library, compiled once for each state of the sources."""
    return _declared(ctypes.CDLL(str(shared_library("native-rows", FLAGS, SOURCES, NATIVE.rglob("*.h")))))


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    size, text, pointer = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
    library.rows_open.restype = library.rows_content.restype = pointer
    library.rows_width.restype = size
    library.utf8_reason.restype = library.json_error.restype = text
    for name in ("begin", "string", "setting", "parameter", "settle", "encode", "answer", "embed"):
        getattr(library, f"rows_{name}").restype = ctypes.c_bool
    library.rows_close.argtypes = library.rows_encode.argtypes = library.rows_settle.argtypes = [pointer]
    library.rows_width.argtypes = [pointer]
    library.rows_open.argtypes = [text, text, text, ctypes.POINTER(text)]
    library.rows_begin.argtypes = [pointer, size, size]
    library.rows_string.argtypes = [pointer, text, text, size]
    library.rows_setting.argtypes = [pointer, text, ctypes.c_int32]
    library.rows_parameter.argtypes = [pointer, text, size, ctypes.c_int, ctypes.c_int64, text]
    library.rows_option.argtypes = [pointer, text]
    library.rows_answer.argtypes = [pointer, pointer, size, size, size, pointer]
    library.rows_embed.argtypes = [pointer, pointer, size, size]
    library.rows_content.argtypes = [pointer, text, ctypes.POINTER(size)]
    library.exponentials.argtypes = [pointer, size]
    library.utf8_reason.argtypes = [text, size, ctypes.POINTER(size)]
    library.json_error.argtypes = [text, size, pointer, size, ctypes.POINTER(size)]
    library.queue_order.argtypes = library.order_of_two.argtypes = [pointer, size, size, text]
    return library


class NativeRows:
    """An encoder and an answer in C++. Raises InvalidInput for refused requests, ValueError if they can't open."""

    def __init__(
        self,
        library: ctypes.CDLL,
        tokenizer: Path | None,
        settings: Mapping[str, Any],
        answer: Mapping[str, Any] | None = None,
    ) -> None:
        self._library = library
        self._inputs = tuple(settings.get("inputs", ()))
        self._has_windows = settings.get("stride") is not None
        self._nested = self._has_windows or settings.get("task") == "zero-shot-classification"
        self._kept: list[Any] = []  # C++ has pointers to it
        wrong = ctypes.c_char_p()
        path = None if tokenizer is None else str(tokenizer).encode()
        described = [None if each is None else json.dumps(each).encode() for each in (settings, answer)]
        self._rows = library.rows_open(path, *described, ctypes.byref(wrong))
        if not self._rows:
            raise ValueError((wrong.value or b"").decode())

    def close(self) -> None:
        """Free the encoder and its last request."""
        self._library.rows_close(self._rows)

    def begin(self, tensors: Tensors, parameters: Mapping[str, Any] | None = None, options: Iterable[str] = ()) -> None:
        """Begin a request of `tensors`, as Triton passes them to a step of a model with the settings `options`."""
        labels = tensors.get("candidate_labels", np.zeros((0, 0))).shape[1]
        self._library.rows_begin(self._rows, len(next(iter(tensors.values()))), labels)
        self._kept = [parameters, tensors]
        for option in options:
            self._library.rows_option(self._rows, option.encode())
        for name, array in tensors.items():
            for value in array.ravel().tolist():
                self._add(name.encode(), value)
        for name, value in (parameters or {}).items():
            raw, number = name.encode(), value if isinstance(value, int) else 0
            text = value.encode() if isinstance(value, str) else b""
            self._kept += [raw, text]
            self._library.rows_parameter(self._rows, raw, len(raw), KINDS[type(value)], number, text)

    def _add(self, name: bytes, value: Any) -> None:
        if isinstance(value, bytes):
            self._library.rows_string(self._rows, name, value, len(value))
        else:
            self._library.rows_setting(self._rows, name, value)

    def settle(self) -> None:
        """Check the request, and take its parameters."""
        self._check(self._library.rows_settle(self._rows))

    def encode(self) -> dict[str, NDArray[np.int32]]:
        """Return the request's token tensors by name."""
        self._check(self._library.rows_encode(self._rows))
        found = {name: self.content(name, np.int32) for name in ("input_ids", "attention_mask")}
        if "token_type_ids" in self._inputs:
            found["token_type_ids"] = self.content("token_type_ids", np.int32)
        truncated = self.content("truncated_tokens", np.int32).reshape(-1, 1)
        shape = (len(truncated), *([-1] if self._nested else []), self._library.rows_width(self._rows))
        more = {"truncated_tokens": truncated}
        if self._has_windows:
            more["window_tokens"] = self.content("window_tokens", np.int32).reshape(len(truncated), -1)
        return {**{name: array.reshape(shape) for name, array in found.items()}, **more}

    def answer(
        self, logits: NDArray[np.float32], window_tokens: NDArray[np.int32] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the answers to the request by name."""
        sequences = logits.shape[1] if logits.ndim == 3 else 1
        data = np.ascontiguousarray(logits)
        tokens = None if window_tokens is None else window_tokens.ctypes.data
        shape = len(logits), sequences, logits.shape[-1]
        made = self._library.rows_answer(self._rows, data.ctypes.data, *shape, tokens)
        self._check(made)
        scores = self.content("score", np.float32).reshape(len(logits), -1)
        labels = self.content("label", np.uint8).tobytes()
        return {"score": scores} | ({"label": _strings(labels).reshape(scores.shape)} if labels else {})

    def embed(self, vectors: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return the vectors of the request, or their first numbers."""
        data = np.ascontiguousarray(vectors)
        self._check(self._library.rows_embed(self._rows, data.ctypes.data, *data.shape))
        return {"embedding": self.content("embedding", np.float32).reshape(len(vectors), -1)}

    def values(self, name: str, dtype: Any) -> NDArray[Any]:
        """Return a setting of the request, [rows, 1]; empty if the request omits it."""
        if dtype is not np.object_:
            return self.content(name, dtype).reshape(-1, 1)
        raw = self.content(name, np.uint8).tobytes()
        return _strings(raw).reshape(-1, 1)

    def content(self, name: str, dtype: Any) -> NDArray[Any]:
        """Return a copy of the values of a result."""
        size = ctypes.c_size_t()
        address = self._library.rows_content(self._rows, name.encode(), ctypes.byref(size))
        return np.frombuffer(ctypes.string_at(address, size.value) if size.value else b"", dtype)

    def _check(self, made: bool) -> None:
        if not made:
            raise InvalidInput(self.content("refusal", np.uint8).tobytes().decode())


def _strings(raw: bytes) -> NDArray[np.object_]:
    """Return strings in Triton's format: each is its length in four bytes, and its bytes."""
    found, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    made = np.empty(len(found), np.object_)
    made[:] = found
    return made


def outcome(make: Callable[[], Mapping[str, NDArray[Any]]]) -> Any:
    """Return the result of `make` for bitwise comparison, or the message of its refusal."""
    try:
        made = make()
    except InvalidInput as refusal:
        return str(refusal)
    return {name: (array.shape, array.dtype.str, _comparable(array)) for name, array in sorted(made.items())}


def _comparable(array: NDArray[Any]) -> Sequence[Any] | bytes:
    return array.ravel().tolist() if array.dtype == np.object_ else np.ascontiguousarray(array).tobytes()
