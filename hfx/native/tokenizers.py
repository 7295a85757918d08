"""Compiled tokenizers for Python code: for the export, which checks them, and for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hfx.errors import NativeMissing
from hfx.native import library

MOST_SPECIAL = 1 << 12


class CompiledTokenizer:
    """A tokenizer from a file that hfx.exporter.compiled_tokenizer wrote. Raises ValueError if the file is damaged."""

    def __init__(self, path: Path, shared_library: Path | None = None) -> None:
        self._handle: int | None = None
        self._calls = _calls(shared_library or library())
        error = ctypes.create_string_buffer(200)
        self._handle = self._calls.hfx_tokenizer_open(str(path).encode(), error, len(error))
        if not self._handle:
            raise ValueError(f"{path} is not a compiled tokenizer: {error.value.decode()}.")

    def __del__(self) -> None:
        if self._handle:
            self._calls.hfx_tokenizer_close(self._handle)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return [int(number) for number in self.encode_batch([text])[0]]

    def words(self, text: str) -> list[int]:
        """Return the number of the pre-tokenizer's piece that each token is in, as `word_ids` of tokenizers does."""
        _ids, words, _ = self.encode_flat([text])
        return [int(word) for word in words]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        """Return the token ids of each text, without special tokens."""
        ids, _, counts = self.encode_flat(texts)
        return np.split(ids, np.cumsum(counts)[:-1]) if len(texts) else []

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray[Any, Any], ...]:
        """Return the ids of all texts in one array, the word number of each id, and the number of ids of each text."""
        contents = [text.encode() for text in texts]
        ends = np.cumsum([len(content) for content in contents], dtype=np.uint64)
        text = b"".join(contents)
        room = len(text) + 16
        while True:
            ids, words, counts = np.empty(room, np.int32), np.empty(room, np.uint32), np.empty(len(texts), np.uint32)
            arrays = [array.ctypes.data for array in (ends, ids, words, counts)]
            count = self._calls.hfx_tokenizer_encode(
                self._handle, text, arrays[0], len(texts), arrays[1], arrays[2], room, arrays[3]
            )
            if count < 0:
                raise MemoryError("There is no memory." if count == -1 else "A text is not UTF-8.")
            if count <= room:
                return ids[:count], words[:count], counts
            room = count

    def token(self, number: int) -> str:
        """Return the text of a token, as `id_to_token` of tokenizers does."""
        room = ctypes.create_string_buffer(1 << 16)
        size = self._calls.hfx_tokenizer_token(self._handle, number, room, len(room))
        return room.raw[:size].decode()

    def template(self, pair: bool) -> tuple[list[int], list[int], list[int], list[int]]:
        """Return the special tokens of one text, or of two if `pair`, and the type ids of the texts.

        The four lists are the ids of the special tokens, their type ids, how many of them are before, between and
        behind the texts, and the type id of the first and of the second text.
        """
        ids, types = (ctypes.c_int32 * MOST_SPECIAL)(), (ctypes.c_int32 * MOST_SPECIAL)()
        counts, text_types = (ctypes.c_uint32 * 3)(), (ctypes.c_int32 * 2)()
        count = self._calls.hfx_tokenizer_template(self._handle, pair, ids, types, MOST_SPECIAL, counts, text_types)
        return ids[:count], types[:count], list(counts), list(text_types)


def _calls(path: Path) -> Any:
    try:
        calls = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeMissing(f"{path} can't be loaded: {error}.", "Run `python -m hfx.native.build` again.") from error
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    calls.hfx_tokenizer_open.restype = pointer
    calls.hfx_tokenizer_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p, size]
    calls.hfx_tokenizer_close.argtypes = [pointer]
    calls.hfx_tokenizer_encode.restype = number
    calls.hfx_tokenizer_encode.argtypes = [pointer, ctypes.c_char_p, pointer, size, pointer, pointer, size, pointer]
    calls.hfx_tokenizer_token.restype = number
    calls.hfx_tokenizer_token.argtypes = [pointer, ctypes.c_int32, pointer, size]
    calls.hfx_tokenizer_template.restype = number
    calls.hfx_tokenizer_template.argtypes = [pointer, ctypes.c_int, pointer, pointer, size, pointer, pointer]
    return calls
