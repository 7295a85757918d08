"""Requests from files of every format, with errors that name file, line and column, and synthetic requests."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from hfx.errors import UsageError
from hfx.perf.load import RequestSet, from_file, parse_columns, parse_lengths, synthetic

TEXT = {"text_input": "text"}


def texts(requests: RequestSet, tensor: str = "text_input") -> list[object]:
    return [request.inputs[tensor][0] for request in requests.items]


@pytest.mark.parametrize(
    ("name", "content", "columns", "expected"),
    [
        ("a.csv", 'id,text\n1,"a, ""b"""\n\n2,"two\nlines"\n', TEXT,
         [{"text_input": 'a, "b"'}, {"text_input": "two\nlines"}]),
        ("a.csv", "text_input\na\n", {"text_input": ""}, [{"text_input": "a"}]),
        ("a.csv", "prompt\na\n", {"text_input": ""}, [{"text_input": "a"}]),
        ("a.csv", 'question,passage,labels\nWho?,Ada came.,"x, y"\n',
         {"question": "", "context": "passage", "candidate_labels": "labels"},
         [{"question": "Who?", "context": "Ada came.", "candidate_labels": ("x", "y")}]),
        ("a.jsonl", '{"text": "a", "candidate_labels": ["x", "y"]}', {"text_input": "", "candidate_labels": ""},
         [{"text_input": "a", "candidate_labels": ("x", "y")}]),
        ("a.csv", 'text,max_tokens,do_sample,top_p,stop_words,label\na,7,true,0.5,"[""x"", ""y""]",1\nb,,,,,\n', TEXT,
         [{"text_input": "a", "max_tokens": 7, "do_sample": True, "top_p": 0.5, "stop_words": ("x", "y")},
          {"text_input": "b"}]),
    ],
)  # fmt: skip
def test_each_row_is_a_request(
    name: str, content: str, columns: dict[str, str], expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    found = from_file(tmp_path / name, columns).items
    values = [{name: each if isinstance(each, tuple) else (each,) for name, each in row.items()} for row in expected]
    assert [request.inputs for request in found] == values


def test_rows_of_parquet_become_requests(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["one", "two"], "max_tokens": [5, None], "stop_words": [["a", "b"], None]})
    pyarrow.parquet.write_table(table, path)
    first, second = from_file(path, TEXT).items
    assert first.inputs == {"text_input": ("one",), "max_tokens": (5,), "stop_words": ("a", "b")}
    assert second.inputs == {"text_input": ("two",)}


def test_settings_of_a_row_override_those_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,max_tokens,long\na,7,13.4\nb,,\n")
    made = from_file(path, TEXT, {"max_tokens": "20", "seed": 3}, inputs=["text_input", "max_tokens"])
    assert made.items[0].inputs == {"text_input": ("a",), "max_tokens": (7,), "seed": (3,)}
    assert made.items[1].inputs == made.at(3).inputs == {"text_input": ("b",), "max_tokens": (20,), "seed": (3,)}
    assert made.description == "a.csv, column text: 2 requests of 1 words, max_tokens=20, seed=3"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "id,words\n1,a\n", "has no column 'text'; its columns are id, words"),
        ("a.csv", "text\n", "has columns but no row"),
        ("a.csv", "text,max_tokens\na,5\nb,many\n", "line 3, column 'max_tokens': max_tokens is 'many'"),
        ("a.csv", "text,do_sample\na,perhaps\n", "line 2, column 'do_sample'"),
        ("a.jsonl", '{"text": "a"}\n{"text": 5}\n', "line 2, column 'text': text_input is 5"),
        ("a.jsonl", '{"text": "a"}\n{"word": "b"}\n', "line 2, column 'text': text_input is None"),
        ("a.jsonl", '{"text": "a", "max_tokens": true}', "line 1, column 'max_tokens'"),
    ],
)
def test_an_invalid_data_file_is_refused_with_line_and_column(
    name: str, content: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UsageError, match=words) as caught:
        from_file(path, TEXT)
    assert str(path) in caught.value.message and caught.value.fix


def test_columns_are_given_by_tensor() -> None:
    encoder, reader = ["text_input", "top_k"], ["question", "context"]
    assert parse_columns(["review"], encoder) == {"text_input": "review"}
    assert parse_columns([], encoder) == {"text_input": ""}
    assert parse_columns(["question=q", "context=c"], reader) == {"question": "q", "context": "c"}
    assert parse_columns(["context=c"], reader) == {"question": "", "context": "c"}
    assert parse_columns(["review", "candidate_labels=l"], ["text_input", "candidate_labels"]) == {
        "text_input": "review", "candidate_labels": "l",
    }  # fmt: skip
    assert parse_columns(["review", "top_k=k"], encoder) == {"text_input": "review", "top_k": "k"}


@pytest.mark.parametrize(
    ("given", "inputs", "words"),
    [
        (["q"], ["question", "context"], "could be the question or the context"),
        (["label=l"], ["text_input"], "none of the model's inputs: text_input"),
        (["a", "b"], ["text_input"], "given twice"),
        (["text_input="], ["text_input"], "names no column"),
        (["a"], ["input_ids"], "takes no text: it takes input_ids"),
    ],
)
def test_columns_that_do_not_fit_are_refused(given: Sequence[str], inputs: Sequence[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_columns(given, inputs)


def test_synthetic_texts_have_the_lengths_asked_for_and_follow_the_seed() -> None:
    made = synthetic(2000, parse_lengths("lognormal:40,0.5,200"), seed=1)
    lengths = [len(str(text).split()) for text in texts(made)]
    assert statistics.median(lengths) == pytest.approx(40, rel=0.08) and max(lengths) <= 200
    assert made == synthetic(2000, parse_lengths("lognormal:40,0.5,200"), seed=1)
    assert texts(made)[0] != texts(synthetic(1, parse_lengths("lognormal:40,0.5,200"), seed=2))[0]
    uniform = [len(str(text).split()) for text in texts(synthetic(2000, parse_lengths("uniform:3-7")))]
    assert set(uniform) == {3, 4, 5, 6, 7}
    assert {len(str(text).split()) for text in texts(synthetic(9, parse_lengths("fixed:12")))} == {12}


def test_synthetic_requests_fill_every_input_of_a_model() -> None:
    made = synthetic(2, parse_lengths("fixed:50"), settings={"top_k": 2}, tensors=("question", "context"))
    assert len(str(texts(made, "question")[0]).split()) == 8 and len(str(texts(made, "context")[0]).split()) == 50
    assert made.items[0].inputs["top_k"] == (2,)
    labels = synthetic(1, parse_lengths("fixed:5"), tensors=("text_input", "candidate_labels")).items[0].inputs
    assert len(labels["candidate_labels"]) == 3
    assert json.dumps(dict(labels))
    ranked = synthetic(1, parse_lengths("fixed:50"), tensors=("text_input", "query"))
    assert [len(str(texts(ranked, name)[0]).split()) for name in ("query", "text_input")] == [8, 50]


@pytest.mark.parametrize(
    "text",
    ["", "fixed", "fixed:0", "fixed:-1", "fixed:x", "uniform:5", "uniform:9-3", "normal:3,1", "fixed:99999999999"]
    + [f"lognormal:{numbers}" for numbers in ("3", "0.5,1", "9,0", "9,1,5", "9,99")],
)
def test_invalid_length_distributions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="lengths"):
        parse_lengths(text)


def test_settings_that_can_not_be_are_refused() -> None:
    for name, value in (("max_tokens", "many"), ("max_tokens", 1.5), ("do_sample", 3), ("temperature", "hot")):
        with pytest.raises(UsageError, match=name):
            synthetic(1, parse_lengths("fixed:3"), settings={name: value})
    with pytest.raises(UsageError, match="0 requests"):
        synthetic(0, parse_lengths("fixed:3"))
