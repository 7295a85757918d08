"""Token ids, windows and pairs equal those of the checkpoint's tokenizer and of transformers' pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hfx.exporter.encoder.kinds.answers import Answers
from hfx.python_backends.encoding import MAX_LABELS, tensors
from hfx.python_backends.errors import ContextTooLong, InvalidInput
from hfx.python_backends.inputs import LONGEST_TEXT, strings
from hfx.python_backends.windows import CONTEXT_BYTES, CONTEXT_TOKENS, REQUEST_TOKENS
from tests import zoo
from tests.rigs.checkpoints.encoder_line import EDGE_TEXTS, encoded, encoder_for
from tests.rigs.checkpoints.question_answering import windows
from tests.rigs.machine.tiers import full

TOKENIZERS = (
    "sentiment-distilbert",
    "entities-bert",
    "topics-roberta",
    "sentiment-xlm-roberta",
    "sentiment-albert",
    "sentiment-deberta",
    "similar-mpnet",
)
SENTENCE = "Anna went from Paris to the market in Berlin, and the weather was awful all day long. "


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return AutoTokenizer.from_pretrained(zoo.tokenizer(request.param))


@pytest.fixture
def bert() -> Any:
    return AutoTokenizer.from_pretrained(zoo.tokenizer("entities-bert"))


def ids_of(row: Any) -> list[int]:
    assert not isinstance(row, InvalidInput), row
    return list(row.sequences[0].ids)


def refusal(row: Any) -> str:
    assert isinstance(row, InvalidInput), row
    return str(row)


def question_tensors(pairs: list[tuple[str, str]], stride: int | None = None) -> dict[str, Any]:
    questions, contexts = zip(*pairs, strict=True)
    given = {} if stride is None else {"doc_stride": np.full((len(pairs), 1), stride, np.int32)}
    return {"question": strings(*questions), "context": strings(*contexts), **given}


# One text a row


@pytest.mark.parametrize("max_length", [8, 16, 100])
@pytest.mark.parametrize("side", ["right", "left"])
def test_ids_equal_the_tokenizers_own(tokenizer: Any, max_length: int, side: str, tmp_path: Path) -> None:
    tokenizer.truncation_side = side
    texts = [*EDGE_TEXTS, *(text * 40 for text in EDGE_TEXTS), SENTENCE * 100]
    expected = [tokenizer(text, truncation=True, max_length=max_length)["input_ids"] for text in texts]
    rows = encoder_for(tokenizer, "text-classification", tmp_path, max_length=max_length).encode(texts)
    assert [ids_of(row) for row in rows] == expected


def test_ids_of_each_length_around_max_length_equal_the_tokenizers_own(bert: Any, tmp_path: Path) -> None:
    texts = ["the " * count for count in range(24)]
    expected = [bert(text, truncation=True, max_length=16)["input_ids"] for text in texts]
    rows = encoder_for(bert, "text-classification", tmp_path, max_length=16).encode(texts)
    assert [ids_of(row) for row in rows] == expected
    whole = [len(bert(text)["input_ids"]) for text in texts]
    assert [row.truncated_tokens for row in rows if not isinstance(row, InvalidInput)] == [
        max(0, length - 16) for length in whole
    ]


@pytest.mark.parametrize("side", ["right", "left"])
def test_offsets_and_specials_equal_the_tokenizers_own(tokenizer: Any, side: str, tmp_path: Path) -> None:
    tokenizer.truncation_side = side
    texts = [*EDGE_TEXTS, SENTENCE * 3, "é" * 3000 + " " + SENTENCE * 300]
    fed = encoded(encoder_for(tokenizer, "token-classification", tmp_path, max_length=64), texts)
    for row, text in enumerate(texts):
        expected = tokenizer(
            text, truncation=True, max_length=64, return_offsets_mapping=True, return_special_tokens_mask=True
        )
        offsets = [
            (-1, -1) if special else place
            for place, special in zip(expected["offset_mapping"], expected["special_tokens_mask"], strict=True)
        ]
        offsets += [(-1, -1)] * (64 - len(offsets))
        assert [tuple(place) for place in fed["offsets"][row].tolist()] == offsets, text[:40]


def test_type_ids_are_given_only_to_nets_that_take_them(bert: Any, tmp_path: Path) -> None:
    with_types = encoder_for(bert, "text-classification", tmp_path)
    without = encoder_for(bert, "text-classification", tmp_path, inputs=("input_ids", "attention_mask"))
    assert "token_type_ids" in encoded(with_types, ["a"])
    assert "token_type_ids" not in encoded(without, ["a"])


def test_a_request_is_padded_to_the_least_width_that_holds_its_longest_row(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "text-classification", tmp_path, max_length=100)
    assert encoded(encoder, ["a"])["input_ids"].shape == (1, 16)
    both = encoded(encoder, ["a", "the " * 30])
    assert both["input_ids"].shape == (2, 32)
    assert both["attention_mask"].sum(axis=1).tolist() == [3, 32]
    assert both["input_ids"][0, 3:].tolist() == [bert.pad_token_id] * 29
    assert both["truncated_tokens"].tolist() == [[0], [0]]
    assert {str(array.dtype) for array in both.values()} == {"int32"}
    assert encoded(encoder, ["the " * 300])["input_ids"].shape == (1, 100)


@pytest.mark.parametrize("task", ["text-classification", "token-classification", "question-answering"])
def test_requests_have_the_same_tensors_alone_and_together(task: str, bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, task, tmp_path, max_length=64)
    texts = [SENTENCE[:end] for end in (5, 30, 6, 87, 31)] + [SENTENCE * 9]
    items: list[Any] = [("Who?", text) for text in texts] if task == "question-answering" else texts
    rows: list[Any] = encoder.encode(items)
    requests = [rows[:1], rows[1:2], rows[2:3], rows[3:5], rows[5:], rows[:1]]
    together = tensors(requests, encoder.settings)
    for found, request in zip(together, requests, strict=True):
        (alone,) = tensors([request], encoder.settings)
        assert {name: array.tolist() for name, array in found.items()} == {
            name: array.tolist() for name, array in alone.items()
        }
        assert all(array.flags.c_contiguous and array.dtype == np.int32 for array in found.values())


def test_text_that_is_no_utf8_is_refused_alone(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "text-classification", tmp_path)
    good, bad, after = encoder.encode([b"good", b"bad \xff\xfe", b"good"])
    assert ids_of(good) == ids_of(after)
    assert refusal(bad).startswith("text_input is not UTF-8") and "0xff" in refusal(bad)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("character", ["é", "漢", "😀"])
def test_a_cut_never_splits_a_character(bert: Any, side: str, character: str, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "text-classification", tmp_path, max_length=16, truncation_side=side)
    for lead in range(4):
        text = "a" * lead + character * 2000 + "a" * lead
        assert not isinstance(encoder.encode([text])[0], InvalidInput)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("flood", "side"),
    [
        (flood, side) if (flood, side) in ((" ", "right"), ("e\u0301", "left")) else full(flood, side)
        for flood in (" ", "e\u0301", "a", "\x00", "😀", "漢", ".", "word ")
        for side in ("right", "left")
    ],
)
def test_a_huge_text_costs_only_its_first_part(tokenizer: Any, flood: str, side: str, tmp_path: Path) -> None:
    encoder = encoder_for(tokenizer, "text-classification", tmp_path, max_length=128, truncation_side=side)
    raw = (flood * (64_000_000 // len(flood.encode()))).encode()
    row = encoder.encode([raw])[0]  # bounded by 256 bytes a token; the whole text would take more than a minute
    assert not isinstance(row, InvalidInput)
    assert row.truncated_tokens > 0


def test_a_sparse_text_is_read_on_until_it_fills_the_model(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "text-classification", tmp_path, max_length=16)
    text = (" " * 50 + "the") * 1000
    assert ids_of(encoder.encode([text])[0]) == bert(text, truncation=True, max_length=16)["input_ids"]


@pytest.mark.parametrize("side", ["right", "left"])
def test_an_overlong_word_is_refused_if_offsets_are_needed(bert: Any, side: str, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "token-classification", tmp_path, max_length=16, truncation_side=side)

    def from_here(*words: str) -> str:
        return "".join(words if side == "right" else words[::-1])

    for good in ("x" * 16 * 255, from_here("Anna", " " * 9000, "x"), from_here("Anna" + " x" * 40, "x" * 9000)):
        assert not isinstance(encoder.encode([good])[0], InvalidInput)
    long = "x" * 4000
    for bad in ("x" * 16 * 257, from_here("Anna ", long, long), from_here("Anna ", long, "\x00" * 100, long)):
        assert "Divide it by blanks" in refusal(encoder.encode([bad])[0])


# Question answering


@pytest.mark.parametrize("max_length", [64, 128, 512])
@pytest.mark.parametrize("name", ["answers-bert", "topics-roberta", "sentiment-xlm-roberta"])
def test_windows_equal_the_pipelines(name: str, max_length: int, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.tokenizer(name))
    tokenizer.model_max_length = max_length
    encoder = encoder_for(tokenizer, "question-answering", tmp_path, max_length=max_length)
    long = (SENTENCE, SENTENCE * 6, SENTENCE * 10, "x" * 700 + SENTENCE * 10)
    for context in (*(text for text in EDGE_TEXTS if text), *long):
        expected = windows(tokenizer, "Where did Anna go?", context)
        fed = encoded(encoder, [("Where did Anna go?", context)])
        assert fed["input_ids"].shape[:2] == (1, len(expected))
        for at, window in enumerate(expected):
            ids = window.inputs["input_ids"]
            length = len(ids)
            assert fed["input_ids"][0, at, :length].tolist() == ids
            assert fed["attention_mask"][0, at].tolist() == [1] * length + [0] * (fed["input_ids"].shape[2] - length)
            assert (fed["spans"][0, at, :length, 0] >= 0).tolist() == window.allowed.tolist()
            assert (fed["spans"][0, at, length:] == -2).all()
            if "token_type_ids" in fed:
                assert fed["token_type_ids"][0, at, :length].tolist() == window.inputs["token_type_ids"]


@pytest.mark.parametrize(("stride", "sentences"), [(None, 1000), (350, 200)])
def test_all_windows_of_a_long_context_equal_the_pipelines(
    stride: int | None, sentences: int, bert: Any, tmp_path: Path
) -> None:
    bert.model_max_length = 384
    question, context = "Who went to Paris?", SENTENCE * sentences
    encoder = encoder_for(bert, "question-answering", tmp_path, max_length=384)
    expected = [window.inputs["input_ids"] for window in windows(bert, question, context, stride)]
    (row,) = encoder.encode(encoder.items(question_tensors([(question, context)], stride)))
    assert not isinstance(row, Exception)
    assert [each.ids for each in row.sequences] == expected
    assert len(expected) > 64 and row.truncated_tokens == 0
    if stride is None:
        assert Answers().expected_ids(bert, {"question": question, "context": context}, 384) == expected


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("stride", [None, 350])
@pytest.mark.parametrize("rows", [1, 64])
def test_a_context_is_read_up_to_the_bound_and_refused_above_it(
    side: str, stride: int | None, rows: int, bert: Any, tmp_path: Path
) -> None:
    encoder = encoder_for(bert, "question-answering", tmp_path, max_length=384, truncation_side=side)
    most = min(CONTEXT_TOKENS, REQUEST_TOKENS // rows) // 384
    question = "Who?"
    room = 384 - 3 - len(bert(question, add_special_tokens=False)["input_ids"])
    tokens = room + (most - 1) * (room - (128 if stride is None else stride))
    fits, above = "the " * tokens, "the " * (tokens + 1)
    others = [(question, "the")] * (rows - 1)
    items = encoder.items(question_tensors([(question, fits), *others], stride))
    (row,) = encoder.encode(items[:1])
    assert not isinstance(row, Exception)
    assert len(row.sequences) == most
    with pytest.raises(ContextTooLong):
        encoder.items(question_tensors([*others, (question, above)], stride))


def test_a_context_of_more_bytes_than_the_bound_is_refused_before_it_is_tokenized(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "question-answering", tmp_path, max_length=384)
    with pytest.raises(ContextTooLong):
        encoder.items(question_tensors([("Who?", " " * (CONTEXT_BYTES + 1))]))


def test_spans_are_the_words_of_the_context(bert: Any, tmp_path: Path) -> None:
    context = "Anna's unbelievably friendly neighbour, Bob."
    spans = encoded(encoder_for(bert, "question-answering", tmp_path), [("Who is it?", context)])["spans"]
    found = {context[start:end] for own, _, start, end in spans[0, 0].tolist() if own >= 0 and end > 0}
    assert found == {"Anna", "'", "s", "unbelievably", "friendly", "neighbour", ",", "Bob", "."}


@pytest.mark.parametrize(("question", "context"), [("", "a context"), ("a question", "")])
def test_an_empty_question_or_context_is_refused(bert: Any, question: str, context: str, tmp_path: Path) -> None:
    row = encoder_for(bert, "question-answering", tmp_path).encode([(question, context)])[0]
    assert refusal(row) == f"{'context' if question else 'question'} is empty"


def test_a_question_that_leaves_no_room_for_the_context_is_refused_alone(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "question-answering", tmp_path, max_length=64)
    long_question = "the " * 40
    crowded, good, fits = encoder.encode(
        [(long_question, SENTENCE * 9), ("Who?", SENTENCE * 9), (long_question, "Bob")]
    )
    assert "question has 40 tokens" in refusal(crowded)
    assert not isinstance(good, InvalidInput) and not isinstance(fits, InvalidInput)
    assert len(good.sequences) > 1 and len(fits.sequences) == 1
    assert "question has 4000000 bytes" in refusal(encoder.encode([("the " * 1000000, "Bob")])[0])


# Zero-shot classification


@pytest.mark.parametrize("name", ["nli-bart", "answers-bert", "sentiment-xlm-roberta"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_pairs_equal_the_pipelines(name: str, side: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.tokenizer(name))
    tokenizer.truncation_side = side
    tokenizer.model_max_length = 48
    encoder = encoder_for(tokenizer, "zero-shot-classification", tmp_path, max_length=48)
    labels = ["travel", "a much longer label than the other ones", "politics 😀"]
    for text in [*(text for text in EDGE_TEXTS if text), SENTENCE * 3, SENTENCE * 900]:
        fed = encoded(encoder, [(text, labels)])
        for at, label in enumerate(labels):
            expected = tokenizer([[text, f"This example is {label}."]], truncation="only_first")["input_ids"][0]
            assert fed["input_ids"][0, at, : len(expected)].tolist() == expected
            assert fed["attention_mask"][0, at].sum() == len(expected)


@pytest.mark.parametrize("side", ["right", "left"])
def test_as_much_of_a_text_is_read_as_the_shortest_label_leaves_room_for(bert: Any, side: str, tmp_path: Path) -> None:
    bert.truncation_side = side
    encoder = encoder_for(bert, "zero-shot-classification", tmp_path, max_length=64)
    text = " ".join("x" * 120 + "the" * (at % 3) for at in range(90))  # words of 120 bytes, each an unknown token
    labels = ["the " * 48, "one", "the " * 30]
    fed = encoded(encoder, [(text, labels)])
    for at, label in enumerate(labels):
        expected = bert(text, f"This example is {label}.", truncation="only_first", max_length=64)["input_ids"]
        assert fed["input_ids"][0, at, : len(expected)].tolist() == expected
        assert len(expected) == 64


def test_rows_of_fewer_labels_get_sequences_that_are_masked(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "zero-shot-classification", tmp_path)
    fed = encoded(encoder, [("a text", ["one"]), ("a text", ["one", "two", "three"])])
    assert fed["input_ids"].shape[:2] == (2, 3)
    assert fed["attention_mask"][0, 1:].sum() == 0


@pytest.mark.parametrize(
    ("text", "labels", "reason"),
    [
        ("", ["one"], "text_input is empty"),
        ("text", [], "candidate_labels is empty"),
        ("text", ["one", ""], "candidate_labels has an empty label"),
        ("text", ["one", " \t"], "candidate_labels has an empty label"),
        ("text", [b"\xff"], "candidate_labels is not UTF-8"),
        (b"\xff", ["one"], "text_input is not UTF-8"),
        ("text", ["the " * 200], "leaves no room"),
        ("text", ["the " * 200000], "candidate_labels has 800000 bytes"),
        ("text", ["one"] * (MAX_LABELS + 1), f"at most {MAX_LABELS}"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(bert: Any, text: Any, labels: Any, reason: str, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "zero-shot-classification", tmp_path)
    bad, good = encoder.encode([(text, labels), ("text", ["one"])])
    assert reason in refusal(bad)
    assert not isinstance(good, InvalidInput)


# Text ranking


@pytest.mark.parametrize("name", ["entities-bert", "topics-roberta", full("sentiment-xlm-roberta")])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_query_and_a_text_equal_the_tokenizers_own_pair(name: str, side: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.tokenizer(name))
    tokenizer.truncation_side = side
    lengths = range(0, 24, 2)
    pairs = [("the " * first, "a " * second) for first in lengths for second in lengths]
    pairs += [(query[:64], text) for query in EDGE_TEXTS for text in (EDGE_TEXTS[0], EDGE_TEXTS[-2], SENTENCE * 9)]
    pairs += [(SENTENCE, SENTENCE * 20), ("the " * 60, "a " * 61), ("the " * 60, "é " * 300), ("a", "\t" * 900 + "b")]
    for max_length in (16, 17):
        encoder = encoder_for(tokenizer, "text-ranking", tmp_path, max_length=max_length)
        expected = tokenizer(pairs, truncation="longest_first", max_length=max_length)
        rows = [row for row in encoder.encode(pairs) if not isinstance(row, InvalidInput)]
        assert [row.sequences[0].ids for row in rows] == expected["input_ids"]
        if "token_type_ids" in expected:
            assert [row.sequences[0].type_ids for row in rows] == expected["token_type_ids"]


def test_what_is_left_out_of_a_pair_is_counted(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "text-ranking", tmp_path, max_length=16)  # 3 of them special
    pairs = [("the " * 3, "the " * 10), ("the " * 3, "the " * 11), ("the " * 20, "the " * 20), ("a", "the " * 90_000)]
    left_out = [row.truncated_tokens for row in encoder.encode(pairs) if not isinstance(row, InvalidInput)]
    assert left_out[:3] == [0, 1, 27] and left_out[3] > 100


def test_a_query_that_can_not_be_used_is_refused_alone(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "text-ranking", tmp_path, max_length=16)
    long, wrong, text, good = encoder.encode([("a" * 257, "b"), (b"\xff", "b"), ("a", b"\xff"), ("", "")])
    assert refusal(long) == "query has 257 bytes; at most 256 can be taken"
    assert refusal(wrong).startswith("query is not UTF-8") and refusal(text).startswith("text_input is not UTF-8")
    assert ids_of(good) == bert([("", "")])["input_ids"][0]


# Tensors of a request, and the settings


def test_tensors_of_a_wrong_shape_are_refused(bert: Any, tmp_path: Path) -> None:
    texts = encoder_for(bert, "text-classification", tmp_path)
    with pytest.raises(InvalidInput, match=r"text_input must hold one string a row .* not shape \[1, 2\]"):
        texts.items({"text_input": np.array([[b"a", b"b"]], object)})
    huge = strings("a" * (LONGEST_TEXT + 1))
    with pytest.raises(InvalidInput, match="text_input has 16777217 bytes, above the limit of 16777216"):
        texts.items({"text_input": huge})
    pairs = encoder_for(bert, "question-answering", tmp_path)
    with pytest.raises(InvalidInput, match="context has 16777217 bytes"):
        pairs.items({"question": strings("a"), "context": huge})
    with pytest.raises(InvalidInput, match="question has 2 rows but context has 1"):
        pairs.items({"question": strings("a", "b"), "context": strings("a")})
    ranked = encoder_for(bert, "text-ranking", tmp_path)
    with pytest.raises(InvalidInput, match="query has 1 rows but text_input has 2"):
        ranked.items({"query": strings("a"), "text_input": strings("a", "b")})
    labels = encoder_for(bert, "zero-shot-classification", tmp_path)
    with pytest.raises(InvalidInput, match="candidate_labels is empty"):
        labels.items({"text_input": strings("a"), "candidate_labels": np.zeros((1, 0), object)})
