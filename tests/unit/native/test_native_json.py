"""C++ reads JSON and UTF-8 as Python does, and refuses what Python refuses."""

from __future__ import annotations

import ctypes
import itertools
import json
import random
from typing import Any

import pytest

from tests.unit.native.native_rows import compiled

# Around the borders of what may begin a character, and follow in it.
BYTES = bytes.fromhex("00417f808f909fa0bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5f8ff")
NUMBERS = (0, -1, 2**63 - 1, -(2**63), 10**30, 1.5, -2e-7, 5e-324)
MARKS = b'{}[],:"\\0123-+.eEuD\n\xff\x00 tfn'
TEXTS = 4000
ODD = (b'{"a": 1, "a": 2}', b'"\\ud83d\\ude00"', b"", b" ", b"\xef\xbb\xbf1", b'"\\ud83d"', b"01", b"NaN", b"1.")


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return compiled()


def check_utf8(library: ctypes.CDLL, text: bytes) -> None:
    at = ctypes.c_size_t()
    reason = library.utf8_reason(text, len(text), ctypes.byref(at))
    expected = None
    try:
        text.decode()
    except UnicodeDecodeError as error:
        expected = (error.reason.encode(), error.start)
    assert (reason and (reason, at.value)) == expected, text


def test_invalid_utf8_has_the_reason_and_place_that_python_gives(library: ctypes.CDLL) -> None:
    for size in range(4):
        for some in itertools.product(BYTES, repeat=size):
            check_utf8(library, bytes(some))
    chance = random.Random(1)
    for _ in range(20_000):
        some = (chance.choice(BYTES) if chance.random() < 0.3 else 0x61 for _ in range(chance.randrange(4, 40)))
        check_utf8(library, bytes(some))


def written(value: Any) -> str:
    """Return a value as rows_interface.cpp writes it; members of an object are pairs in a Members."""
    if isinstance(value, str):
        return f"'{value.encode().hex()}'"
    if isinstance(value, Members):
        return "{" + "".join(f"{written(key)}:{written(each)}," for key, each in value) + "}"
    if isinstance(value, list):
        return "[" + "".join(f"{written(each)}," for each in value) + "]"
    return str(value)


class Members(list[tuple[str, Any]]):
    """The pairs of an object, including those with equal keys."""


class Number(float):
    """A number with its original spelling."""

    def __new__(cls, text: str) -> Number:
        number = super().__new__(cls, text)
        number.text = text  # type: ignore[attr-defined]
        return number

    def __str__(self) -> str:
        return str(self.text)  # type: ignore[attr-defined]


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def check_json(library: ctypes.CDLL, text: bytes) -> bool:
    """Check that a text is read alike; return whether it is JSON."""
    room, at = ctypes.create_string_buffer(1 << 16), ctypes.c_size_t()
    wrong = library.json_error(text, len(text), ctypes.addressof(room), len(room), ctypes.byref(at))
    try:
        decoder = {"parse_int": Number, "parse_float": Number, "parse_constant": _refuse}
        expected = written(json.loads(text.decode(), object_pairs_hook=Members, **decoder))
    except ValueError:  # and UnicodeError of half a pair of surrogates
        assert wrong is not None and at.value <= len(text), text
        return False
    assert wrong is None and room.value.decode() == expected, (text, wrong)
    return True


def generated(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 5 else 6)
    if kind < 2:
        return chance.choice([None, True, False])
    if kind < 4:
        return chance.choice(NUMBERS)
    if kind < 6:
        return "".join(chance.choice('a"\\/\b\né€😀\0 x') for _ in range(chance.randrange(6)))
    values = [generated(chance, depth + 1) for _ in range(chance.randrange(4))]
    return values if kind == 6 else {chance.choice('abé"') * at: value for at, value in enumerate(values)}


def test_json_is_read_as_python_reads_it(library: ctypes.CDLL) -> None:
    chance, whole = random.Random(2), 0
    for _ in range(TEXTS):
        text = json.dumps(
            generated(chance), ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 1])
        ).encode()
        assert check_json(library, text)
        at = chance.randrange(len(text))
        end = at + chance.randrange(2)
        whole += check_json(library, text[:at] + bytes([chance.choice(MARKS)]) + text[end:])
    assert 0 < whole < TEXTS
    for text in (
        b'{"a": 1, "a": 2}',
        b'"\\ud83d\\ude00"',
        b"",
        b" ",
        b"\xef\xbb\xbf1",
        b'"\\ud83d"',
        b"01",
        b"NaN",
        b"1.",
    ):
        check_json(library, text)


@pytest.mark.parametrize(
    ("text", "wrong", "at"),
    [
        (b"[1, 2,,]", b"a value is expected", 6),
        (b'{"a" 1}', b"a colon is expected", 5),
        (b"[" * 66, b"the JSON is nested too deeply", 65),
        (b" " * (4 << 20) + b"1", b"the JSON is too large", 0),
        (b'"\xff"', b"invalid start byte", 1),
    ],
)
def test_a_refusal_has_its_place(text: bytes, wrong: bytes, at: int, library: ctypes.CDLL) -> None:
    place = ctypes.c_size_t()
    assert library.json_error(text, len(text), None, 0, ctypes.byref(place)) == wrong
    assert place.value == at
