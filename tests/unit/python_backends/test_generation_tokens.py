"""The tokens of a text: together they are the text, partial characters are bytes, and settings choose the details."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from hfx.python_backends.engine.request import Event
from hfx.python_backends.errors import InvalidRequest
from hfx.python_backends.generation.detokenizer import Detokenizer
from hfx.python_backends.generation.generator import TextGenerator
from hfx.python_backends.generation.pieces import Piece, SequenceReader, Token, join_texts, shown
from tests.rigs.checkpoints.generation_tokenizers import KINDS, LINES, byte_level
from tests.rigs.engine.generation_models import END, TEXT, write_model

SAMPLED: dict[str, Any] = {"temperature": 2.0, "top_k": 0, "seed": 3}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    with TextGenerator.open(write_model(tmp_path_factory.mktemp("decoder")), slots=4, threads=1) as generator:
        yield generator


def tokens_of(detokenizer: Detokenizer, ids: list[int], top: list[int] = []) -> tuple[Token, ...]:  # noqa: B006
    """Return the tokens of a finished sequence, with the same alternatives everywhere."""
    others = tuple((token_id, -9.0) for token_id in top)
    event = Event(0, tuple(ids), "stop", None, (-1.0,) * len(ids), (others,) * len(ids) if top else ())
    return SequenceReader(detokenizer, returns_tokens=True).tokens(event, 0, len(ids))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unknown"])
def test_the_texts_of_tokens_are_together_the_text(kind: str) -> None:
    tokenizer = KINDS[kind]()
    detokenizer = Detokenizer(tokenizer.backend_tokenizer)
    for line in LINES:
        ids = tokenizer(line, add_special_tokens=False)["input_ids"]
        tokens = tokens_of(detokenizer, ids)
        text = b"".join(token.raw for token in tokens if not token.special).decode("utf-8", "replace")
        # A decoder that drops the space behind the last word does so at each piece's end, too.
        assert text == detokenizer.decode(ids), line
        assert [token.id for token in tokens] == ids


def test_partial_characters_are_shown_as_bytes_and_special_tokens_by_name() -> None:
    tokenizer = byte_level()
    detokenizer = Detokenizer(tokenizer.backend_tokenizer, special_ids=[tokenizer.eos_token_id])
    ids = [*tokenizer("a 👩 b")["input_ids"], tokenizer.eos_token_id]
    tokens = tokens_of(detokenizer, ids)
    halves = [token.text for token in tokens if token.text.startswith("bytes:")]
    assert halves and all(text.startswith("bytes:\\x") for text in halves)
    assert (tokens[-1].text, tokens[-1].special) == (tokenizer.eos_token, True)
    assert not any(token.special for token in tokens[:-1])


@pytest.mark.parametrize("text", [b"", b"caf\xc3\xa9", b"\xe2\x80", b"bytes:", b"bytes:\\xe2", b"\xf0\x9f\x98"])
def test_any_bytes_come_back_from_their_text(text: bytes) -> None:
    assert Token(0, shown(text), 0.0).raw == text


def test_alternatives_have_the_texts_that_they_would_have_in_the_place() -> None:
    tokenizer = KINDS["unigram"]()
    detokenizer = Detokenizer(tokenizer.backend_tokenizer)
    ids = tokenizer("The cat sat on the mat", add_special_tokens=False)["input_ids"]
    for at, token in enumerate(tokens_of(detokenizer, ids, top=ids[:3])):
        own = detokenizer.decode(ids[:at])
        assert [own + each.text for each in token.top] == [detokenizer.decode([*ids[:at], i]) for i in ids[:3]]


def test_a_probability_of_zero_is_a_number_of_json() -> None:
    event = Event(0, (5,), "stop", None, (float("-inf"),), (((5, float("-inf")),),))
    (token,) = SequenceReader(Detokenizer(byte_level().backend_tokenizer), returns_tokens=True).tokens(event, 0, 1)
    assert (token.logprob, token.top[0].logprob) == (-9999.0, -9999.0)


# Of a generator


@pytest.mark.parametrize("fields", [{}, SAMPLED, {"repetition_penalty": 1.5}], ids=["greedy", "sampled", "edited"])
@pytest.mark.parametrize("count", [0, 3])
def test_logprobs_give_the_tokens_and_alternatives_of_a_text(
    decoder: TextGenerator, fields: dict[str, Any], count: int
) -> None:
    found = decoder.generate("cat", max_tokens=8, logprobs=count, **fields)
    plain = decoder.generate("cat", max_tokens=8, return_log_probs=True, **fields)
    assert (found.text, found.log_probs) == (plain.text, plain.log_probs) and plain.tokens is None
    assert found.tokens is not None
    assert [token.logprob for token in found.tokens] == list(found.log_probs or ())
    assert [token.text for token in found.tokens] == [TEXT[token.id] if token.id else END for token in found.tokens]
    for token in found.tokens:
        best = [each.logprob for each in token.top]
        assert len(best) == count and best == sorted(best, reverse=True)
        assert all(each.logprob == token.logprob for each in token.top if each.id == token.id)


def test_the_best_alternative_of_a_greedy_token_is_itself(decoder: TextGenerator) -> None:
    found = decoder.generate("cat", max_tokens=8, logprobs=20)
    assert found.tokens and all(token.top[0].id == token.id for token in found.tokens)


def test_pieces_have_the_tokens_since_the_piece_before(decoder: TextGenerator) -> None:
    whole = decoder.generate("cat", max_tokens=12, logprobs=2, stop_words=["zz"])
    pieces = list(decoder.stream("cat", max_tokens=12, logprobs=2, stop_words=["zz"]))
    assert join_texts(pieces) == (whole,)
    counts = [0, *(piece.output_tokens for piece in pieces)]
    assert [len(piece.tokens or ()) for piece in pieces] == [b - a for a, b in pairwise(counts)]


def test_outputs_of_tokens_are_sent_only_on_request(decoder: TextGenerator) -> None:
    found = decoder.generate("cat", max_tokens=3, logprobs=1).outputs()
    assert {len(found[name]) for name in found if name.startswith("token_")} == {3}
    assert {len(row) for name in found if name.startswith("token_") for row in found[name]} == {2}
    assert not [name for name in Piece("").outputs() if name.startswith("token_")]


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"num_beams": 2}, "num_beams is 2; leave logprobs out, or set num_beams to 1"),
        ({"long": "chunk"}, "long is chunk; leave logprobs out"),
    ],
)
def test_logprobs_is_refused_with_beams_and_chunks(
    fields: dict[str, Any], allowed: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_model(tmp_path_factory.mktemp("summarizer"), max_source=48)
    with TextGenerator.open(folder, slots=4, threads=1) as summarizer:
        for count in (0, 2):
            with pytest.raises(InvalidRequest, match=allowed) as caught:
                summarizer.generate("cat", logprobs=count, **fields)
            assert caught.value.field == "logprobs"
