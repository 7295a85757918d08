"""Sequences of the labels of a request and a text, and entities decoded from scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from hfx.python_backends.encoding import make_encoder
from hfx.python_backends.errors import ContextTooLong, InvalidInput
from hfx.python_backends.labelled import LABEL, MORE, MOST_LABELS, TEXT, WORD
from hfx.python_backends.rows import Row, tensors
from hfx.python_backends.settings import Labelled, Settings
from hfx.python_backends.tasks.labelled_spans import MOST_SPANS, Postprocessor

ENT, SEP, LABEL_TOKEN = "<<ENT>>", "<<SEP>>", "<<LABEL>>"
WORDS = ("anna", "met", "erik", "in", "os", "##lo", "person", "town", "big", "a", ".", "-")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    special = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", ENT, SEP, LABEL_TOKEN)
    made = Tokenizer(models.WordPiece({word: at for at, word in enumerate((*special, *WORDS))}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(list(special))
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    path = tmp_path_factory.mktemp("labelled") / "tokenizer.json"
    made.save(str(path))
    return path


SPANS = Settings("token-classification", 64, (16, 64), stride=4, labelled=Labelled((ENT, SEP), words=10), vocab_size=30)
TEXTS = Settings("zero-shot-classification", 32, (32,), labelled=Labelled((LABEL_TOKEN, SEP)))


def items(*texts: str, labels: tuple[str, ...] = ("person", "town"), **options: Any) -> dict[str, Any]:
    named = [[label.encode() for label in labels]] * len(texts)
    return {
        "text_input": np.array([[text.encode()] for text in texts], np.object_),
        "candidate_labels": np.array(named, np.object_).reshape(len(texts), len(labels)),
        **{
            name: np.array([[value]] * len(texts), np.object_ if isinstance(value, bytes) else None)
            for name, value in options.items()
        },
    }


def rows(path: Path, settings: Settings, request: dict[str, Any]) -> list[Row]:
    encoder = make_encoder(path, settings)
    made = encoder.encode(encoder.items(request))
    for row in made:
        if isinstance(row, Exception):
            raise row
    return [row for row in made if isinstance(row, Row)]


def tokens(path: Path, row: Row, window: int = 0) -> str:
    tokenizer = Tokenizer.from_file(str(path))
    return " ".join(str(tokenizer.id_to_token(token)) for token in row.sequences[window].ids)


def test_the_labels_and_the_words_are_one_sequence_with_masks_of_their_roles(tokenizer: Path) -> None:
    [row] = rows(tokenizer, SPANS, items("Anna met Erik in Oslo."))
    assert tokens(tokenizer, row) == ("[CLS] <<ENT>> person <<ENT>> town <<SEP>> anna met erik in os ##lo . [SEP]")
    roles = {3: LABEL, 1: LABEL, 6: WORD, 7: WORD, 8: WORD, 9: WORD, 10: WORD, 12: WORD}
    assert row.sequences[0].mask == [roles.get(at, 1) for at in range(14)]
    places = row.sequences[0].places
    assert places is not None
    assert places[10].tolist() == [17, 21], "the word, not its first token"
    assert row.truncated_tokens == 0


def test_the_last_token_of_a_word_stands_for_it_and_the_token_behind_a_marker_for_the_label(tokenizer: Path) -> None:
    own = Labelled((ENT, SEP), words=10, first_tokens=False, embeds_marker=False)
    [row] = rows(tokenizer, replace(SPANS, labelled=own), items("Oslo"))
    assert tokens(tokenizer, row) == "[CLS] <<ENT>> person <<ENT>> town <<SEP>> os ##lo [SEP]"
    assert row.sequences[0].mask == [1, 1, LABEL, 1, LABEL, 1, 1, WORD, 1]


def test_a_long_text_is_read_in_windows_behind_all_labels_that_share_words(tokenizer: Path) -> None:
    text = " ".join(["anna"] * 25)
    [row] = rows(tokenizer, SPANS, items(text))
    of_words = [each.places[each.places[:, 0] >= 0] for each in row.sequences if each.places is not None]
    windows = [each.tolist() for each in of_words]
    assert [len(each) for each in windows] == [10, 10, 10, 7]
    assert windows[0][-4:] == windows[1][:4]
    assert {tuple(place) for each in windows for place in each} == {(5 * at, 5 * at + 4) for at in range(25)}
    assert all(tokens(tokenizer, row, at).startswith("[CLS] <<ENT>> person <<ENT>> town <<SEP>>") for at in range(4))
    [made] = tensors([[row]], SPANS)
    assert made["input_ids"].shape == (1, 4, 64)


def test_a_text_may_be_cut_as_gliner_cuts_it_or_refused(tokenizer: Path) -> None:
    text = " ".join(["anna"] * 11)
    [row] = rows(tokenizer, SPANS, items(text, long=b"truncate"))
    assert (len(row.sequences), row.truncated_tokens) == (1, 1)
    with pytest.raises(ContextTooLong):
        rows(tokenizer, SPANS, items(text, long=b"error"))


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (items("anna", labels=tuple(f"a{at}" for at in range(MOST_LABELS + 1))), "101 labels"),
        (items("anna", labels=("a" * 10_240,)), "10240 bytes"),
        (items("anna", labels=("person", "person")), "'person' twice"),
        (items("anna", labels=("person", " ")), "empty label"),
        (items("anna", labels=(f"big {ENT}",)), ENT),
        (items("anna", labels=(f"{SEP}big",)), SEP),
        (items("", labels=("person",)), "text_input is empty"),
        (items(" \t\n", labels=("person",)), "text_input is empty"),
        (items("\u200b", labels=("person",)), "no tokens"),
        (items("anna", labels=tuple("a" * at for at in range(1, 40))), "no room"),
        (items("anna", threshold=np.float32(0)), "threshold"),
        (items("anna", threshold=np.float32(1.5)), "threshold"),
        (items("anna", threshold=np.float32("nan")), "threshold"),
        (items("anna", long=b"guess"), "long is 'guess'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_request_has_a_reason(tokenizer: Path, request_: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refusal:
        rows(tokenizer, SPANS, request_)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


def test_labels_without_a_text_of_their_own_are_refused_for_classifiers_too(tokenizer: Path) -> None:
    for request in (items("anna", labels=(LABEL_TOKEN,)), items(""), items("anna", labels=("town", "town"))):
        with pytest.raises(InvalidInput):
            rows(tokenizer, TEXTS, request)
    with pytest.raises(InvalidInput, match="no room"):
        rows(tokenizer, TEXTS, items("anna", labels=tuple("a" * at for at in range(1, 20))))


def test_a_classifier_reads_the_labels_and_the_text_as_one_text_and_cuts_its_end(tokenizer: Path) -> None:
    [row] = rows(tokenizer, TEXTS, items("anna " * 40))
    assert tokens(tokenizer, row).startswith("[CLS] <<LABEL>> person <<LABEL>> town <<SEP>> anna anna")
    assert tokens(tokenizer, row).endswith("anna [SEP]")
    assert (len(row.sequences[0].ids), row.truncated_tokens) == (32, 40 - 25)
    assert row.sequences[0].mask == [WORD, LABEL, 1, LABEL, *[1] * 28]


def test_tokens_of_labels_are_marked_where_their_mean_stands_for_a_label(tokenizer: Path) -> None:
    own = Labelled((LABEL_TOKEN, SEP), averaged=True, reads_separator=True)
    [row] = rows(tokenizer, replace(TEXTS, labelled=own), items("anna", labels=("big town", "person")))
    assert tokens(tokenizer, row) == "[CLS] <<LABEL>> big town <<LABEL>> person <<SEP>> anna [SEP]"
    assert row.sequences[0].mask == [1, LABEL, MORE, MORE, LABEL, MORE, WORD, TEXT, TEXT]


# Decoding

ANNA = b"anna met erik"
PLACES = np.array([[-1, -1], [0, 4], [5, 8], [9, 13], [-1, -1]], np.int32)


def answer(scores: dict[tuple[int, int, int], float], by_tokens: bool = False, **options: Any) -> list[dict[str, Any]]:
    """Return the entities of the logits `scores` (word, column, label); all others are low."""
    logits = np.full((1, 1, 5, 3, 2), -9, np.float32)
    for place, value in scores.items():
        logits[0, 0][place] = value
    request = {
        "logits": logits,
        "offsets": PLACES[None, None],
        "text_input": np.array([[ANNA]], np.object_),
        "candidate_labels": np.array([[b"person", b"verb"]], np.object_),
    }
    request |= {name: np.array([[value]]) for name, value in options.items()}
    return json.loads(Postprocessor(by_tokens).answer(request)["entities"][0, 0])  # type: ignore[no-any-return]


def found(entities: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["entity"], each["word"]) for each in entities]


def test_the_best_of_spans_that_overlap_is_kept_in_the_order_of_the_text() -> None:
    entities = answer({(2, 0, 0): 1.0, (0, 1, 0): 2.0, (0, 0, 1): 3.0, (1, 0, 1): 0.5})
    assert found(entities) == [("verb", "anna"), ("verb", "met"), ("person", "erik")]
    assert entities[0]["score"] == pytest.approx(1 / (1 + np.exp(-3)), abs=1e-7)


def test_a_span_beyond_the_last_word_or_at_the_threshold_is_none() -> None:
    assert answer({(2, 1, 0): 5.0, (0, 0, 0): 0.0}) == []


def test_nested_entities_may_be_inside_but_not_cross() -> None:
    scores = {(0, 1, 0): 3.0, (0, 0, 1): 2.0, (1, 1, 0): 1.0}
    assert found(answer(scores, nested=True)) == [("person", "anna met"), ("verb", "anna")]
    assert found(answer(scores)) == [("person", "anna met")]


def test_a_span_has_several_labels_only_on_request() -> None:
    scores = {(0, 0, 0): 1.0, (0, 0, 1): 2.0}
    assert found(answer(scores)) == [("verb", "anna")]
    assert found(answer(scores, multi_label=True)) == [("verb", "anna"), ("person", "anna")]
    assert found(answer(scores, multi_label=True, nested=True)) == [("verb", "anna"), ("person", "anna")]


def test_a_lower_threshold_finds_more() -> None:
    assert found(answer({(0, 0, 0): -2.0}, threshold=np.float32(0.1))) == [("person", "anna")]


def test_spans_of_scored_words_begin_end_and_hold_together() -> None:
    scores = {(0, 0, 0): 3.0, (1, 1, 0): 2.0, (0, 2, 0): 1.0, (1, 2, 0): 4.0}
    [entity] = answer(scores, by_tokens=True)
    assert (entity["word"], entity["score"]) == ("anna met", pytest.approx(1 / (1 + np.exp(-1)), abs=1e-7))
    assert answer(scores | {(1, 2, 0): -1.0}, by_tokens=True) == []


def test_the_windows_of_a_text_find_an_entity_once() -> None:
    logits = np.full((1, 2, 5, 3, 1), -9, np.float32)
    logits[0, 0, 2, 0], logits[0, 1, 0, 0], logits[0, 1, 1, 0] = 1.0, 2.0, 3.0
    later = np.array([[-1, -1], [9, 13], [14, 18], [-1, -1], [-1, -1]], np.int32)
    request = {
        "logits": logits,
        "offsets": np.stack([PLACES, later])[None],
        "text_input": np.array([[b"anna met erik anna"]], np.object_),
        "candidate_labels": np.array([[b"person"]], np.object_),
    }
    entities = json.loads(Postprocessor(False).answer(request)["entities"][0, 0])
    assert [(each["word"], each["start"]) for each in entities] == [("erik", 9), ("anna", 14)]
    assert entities[0]["score"] == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-7)


def test_a_threshold_that_too_many_spans_reach_is_refused() -> None:
    words, labels = 384, 10
    request = {
        "logits": np.zeros((1, 1, words, 12, labels), np.float32),
        "offsets": np.array([[at, at + 1] for at in range(words)], np.int32)[None, None],
        "text_input": np.array([[b"a" * words]], np.object_),
        "candidate_labels": np.array([[b"%d" % at for at in range(labels)]], np.object_),
        "threshold": np.array([[0.4]], np.float32),
    }
    with pytest.raises(InvalidInput, match=f"more than {MOST_SPANS} spans"):
        Postprocessor(False).answer(request)
