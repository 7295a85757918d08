"""A text ends before its first stop string, wherever tokens and pieces end."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hfx.python_backends.engine.request import Event
from hfx.python_backends.generation.detokenizer import Detokenizer, StopStrings
from hfx.python_backends.generation.pieces import Piece, SequenceReader, join_pieces
from tests.rigs.checkpoints.generation_tokenizers import byte_level, random_text, unigram


def by_letters(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return the text by definition: letter by letter, until it ends with a stop string, the longest of several."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def shown(text: str, stops: Sequence[str], draw: random.Random) -> tuple[str, bool, bool]:
    """Return the text of pieces of random lengths, whether a stop was found, and whether early output was right."""
    found = StopStrings(stops)
    expected, _ = by_letters(text, stops)
    out, right, at = "", True, 0
    while at < len(text):
        end = at + draw.randrange(1, 4)
        out += found.push(text[at:end])
        right = right and expected.startswith(out)
        at = end
    return out + found.finish(), found.found, right


def test_any_text_ends_as_if_it_came_letter_by_letter() -> None:
    draw = random.Random(3)
    for _ in range(20_000):
        stops = ["".join(draw.choice("abc") for _ in range(draw.randrange(1, 5))) for _ in range(draw.randrange(4))]
        text = "".join(draw.choice("abc") for _ in range(draw.randrange(14)))
        assert shown(text, stops, draw) == (*by_letters(text, stops), True), (text, stops)


def test_only_a_possible_beginning_of_a_stop_string_is_held_back() -> None:
    found = StopStrings(["###", "END"])
    assert [found.push(text) for text in ("ab#", "#c", "E", "N", "d", "##", "#")] == [
        "ab",
        "##c",
        "",
        "",
        "ENd",
        "",
        "",
    ]
    assert found.found
    assert found.push("more") == found.finish() == ""


@pytest.mark.parametrize("make", [byte_level, unigram])
def test_tokens_of_a_text_and_of_a_beam_end_alike(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    detokenizer = Detokenizer(tokenizer.backend_tokenizer)
    draw = random.Random(4)
    stopped = 0
    for _ in range(400):
        ids = tuple(tokenizer(random_text(draw))["input_ids"])
        whole = detokenizer.decode(ids)
        at = draw.randrange(len(whole) + 1)
        stops = [stop for stop in (whole[at : at + draw.randrange(1, 5)], "😀") if stop]
        expected, found = by_letters(whole, stops)
        stopped += found
        log_probs = tuple(float(one) for one in range(len(ids)))
        tokens = [Event(0, ids[at : at + 1], log_probs=log_probs[at : at + 1]) for at in range(len(ids))]
        end = Event(0, ids, "length", None, log_probs)

        beam = SequenceReader(detokenizer, stops).next(Piece("", log_probs=()), end)
        assert (beam.text, beam.finish_reason) == (expected, "stop" if found else "length")
        assert beam.log_probs == log_probs[: beam.output_tokens]

        reader, pieces = SequenceReader(detokenizer, stops), [Piece("", log_probs=())]
        for event in (*tokens, end):
            if not pieces[-1].finish_reason:
                pieces.append(reader.next(pieces[-1], event))
        assert join_pieces([piece for piece in pieces if piece.is_shown]) == beam
    assert stopped > 200
