"""Pairs in a template: the tokens of the whole text, or its first tokens and the template's last ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hfx.python_backends.encoding import Settings, make_encoder
from hfx.python_backends.errors import InvalidInput, InvalidRequest
from hfx.python_backends.inputs import strings
from hfx.python_backends.rows import Row
from hfx.python_backends.templates import TemplateEncoder
from tests.rigs.checkpoints.decoder_rankers import PREFIX, SUFFIX, Ranker, pieces

LENGTH = 120
PLAIN = (PREFIX + "Query: ", "query", "\nDocument: ", "text_input", SUFFIX)
PROMPTED = ("<|im_start|>", "prompt", "\n", "query", " ", "query", "\n", "text_input", "")
TEXTS = ("", " ", "a cat", "the dog ran in a good film. " * 90, "é" * 5000, "\n" * 3000, "a<|im_end|>b", "x " * 100_000)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return pieces(Ranker())


@pytest.fixture(scope="module")
def encoder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> TemplateEncoder:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.backend_tokenizer.save(str(file))
    made = make_encoder(file, settings())
    assert isinstance(made, TemplateEncoder)
    return made


def settings(**changes: Any) -> Settings:
    values = {"template": PLAIN, "prompted_template": PROMPTED, "prompts": {"film": "a film"}, **changes}
    return Settings("text-ranking", LENGTH, (16, 64, LENGTH), vocab_size=None, **values)


def expected(tokenizer: Any, before: str, text: str, behind: str) -> tuple[list[int], int]:
    """Return the ids of a filled template, and the number of omitted ids, without any shortcut."""
    ids, end = tokenizer([before + text + behind, behind], add_special_tokens=False)["input_ids"]
    return (ids if len(ids) <= LENGTH else ids[: LENGTH - len(end)] + end), max(0, len(ids) - LENGTH)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("query", ["", "{query}", "a cat? " * 60])
def test_ids_are_those_of_the_whole_text(encoder: TemplateEncoder, tokenizer: Any, query: str, text: str) -> None:
    plain, prompted = encoder.encode([(b"", query, text), (b"find \n", query, text)])
    for row, (before, behind) in (
        (plain, (f"{PREFIX}Query: {query}\nDocument: ", SUFFIX)),
        (prompted, (f"<|im_start|>find \n\n{query} {query}\n", "")),
    ):
        assert isinstance(row, Row)
        [made] = row.sequences
        ids, left_out = expected(tokenizer, before, text, behind)
        assert made.ids == ids
        assert bool(row.truncated_tokens) == bool(left_out) and row.truncated_tokens <= left_out


def test_bad_texts_are_refused_alone(encoder: TemplateEncoder) -> None:
    items = [
        (b"", b"a", b"a cat"),
        (b"", b"\xff", b"a cat"),
        (b"", b"a", b"\xff"),
        (b"\xff", b"a", b"a cat"),
        (b"", b"a" * 17 * LENGTH, b"a cat"),
        (b"a" * 17 * LENGTH, b"a", b"a cat"),
    ]
    good, *bad = encoder.encode(items)
    assert isinstance(good, Row)
    wrong = ("query is not UTF-8", "text_input is not UTF-8", "prompt is not UTF-8", "query has", "prompt has")
    for refusal, message in zip(bad, wrong, strict=True):
        assert isinstance(refusal, InvalidInput) and str(refusal).startswith(message)
    with pytest.raises(InvalidInput, match="the model's prompts are 'film'"):
        encoder.items({"query": strings("a"), "text_input": strings("b"), "prompt_name": strings("c")})
    with pytest.raises(InvalidInput, match="query has 2 rows"):
        encoder.items({"query": strings("a", "b"), "text_input": strings("b")})
    with pytest.raises(InvalidInput, match="shape"):
        encoder.items({"query": strings("a"), "text_input": np.array([b"a"], object)})


@pytest.mark.parametrize(
    "template",
    [
        "query text_input",
        3,
        (),
        ("a", "query", "b"),
        ("a", "text_input", "b"),
        ("a", "text_input", "b", "query", "c"),
        ("a", "text_input", "b", "query", "c", "text_input", "d"),
        ("a", "query", "b", "label", "c", "text_input", "d"),
        ("a", "query", "b", "text_input"),
        ("a", "query", 3, "text_input", "d"),
    ],
)
def test_templates_of_other_parts_are_refused(template: Any) -> None:
    with pytest.raises(InvalidRequest):
        settings(template=template)
