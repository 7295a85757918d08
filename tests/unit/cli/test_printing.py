"""How answers and failures are printed for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from hfx.cli import output, printing
from hfx.cli.output import Reporter
from hfx.cli.reading import Entry
from hfx.client import Piece, Token
from hfx.errors import HfxError, RequestRefused, ServerBusy, UsageError
from hfx.names import Task

Outcomes = list[tuple[Entry, dict[str, Any] | HfxError]]


def outcomes(*given: dict[str, Any] | HfxError) -> Outcomes:
    return [(Entry(f"Line {number}", "x"), outcome) for number, outcome in enumerate(given, 1)]


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"text_output": value, **more}


def test_steps_are_counted_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "SECONDS", 0.0)
    with Reporter().steps("Training", 3) as count:
        for _ in range(3):
            count()
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "Training (3 steps)"
    assert [line.partition(",")[0] for line in lines] == [f"Training: {done} of 3 steps" for done in (1, 2, 3)]
    assert lines[-1].endswith(" 0 s left")


def test_lines_before_a_failure_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ServerBusy, match="Line 2: full"):
        printing.lines(Task.SUMMARIZATION, outcomes(text("a"), ServerBusy("full"), text("b")), Reporter())
    assert capsys.readouterr().out == "a\n"


def test_a_single_label_is_a_value_unless_several_were_requested() -> None:
    given = outcomes({"label": ["a"], "score": [0.5]}, {"label": ["a", "b"], "score": [0.5, 0.5]}, ServerBusy("full"))
    plain = [outcome for _, outcome in printing.single_values(given, lambda entry: True)]
    assert plain == [{"label": "a", "score": 0.5}, given[1][1], given[2][1]]
    assert list(printing.single_values(given, lambda entry: False)) == given


def test_rows_keep_their_places_and_ids_and_the_first_failure_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    given: Outcomes = [
        (Entry("Line 1", {}, "first"), text("a")),
        (Entry("Line 3", {}, 2), RequestRefused("No.", "Ask another.", status="INVALID_ARGUMENT", model="m")),
        (Entry("Line 4", {}), UsageError("Broken.")),
        (Entry("Line 5", {}), text("z")),
    ]
    with pytest.raises(RequestRefused) as caught:
        printing.rows(given, Reporter())
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"id": "first", "text_output": "a"},
        {"id": 2, "error": {"type": "RequestRefused", "message": "Line 3: No.", "fix": "Ask another.", "exit_code": 5}},
        {"error": {"type": "UsageError", "message": "Line 4: Broken.", "fix": "", "exit_code": 2}},
        {"text_output": "z"},
    ]
    assert caught.value.message.startswith("2 of 4 lines")
    assert (caught.value.status, caught.value.model, caught.value.fix) == ("INVALID_ARGUMENT", "m", "Ask another.")


def test_rows_without_failures_and_empty_results_raise_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    printing.rows([], Reporter())
    printing.rows(outcomes(text("é")), Reporter())
    assert capsys.readouterr().out == '{"text_output": "é"}\n'


def test_pieces_are_printed_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def stream(entry: Entry) -> Generator[Piece, None, None]:
        for text in ("Once ", "upon"):
            yield Piece(text)
            seen.append(capsys.readouterr().out)
        yield Piece("", truncated_tokens=3)

    printing.pieces(Task.SUMMARIZATION, [Entry("", "x")], stream, Reporter())
    assert seen == ["Once ", "upon"]
    captured = capsys.readouterr()
    assert captured.out == "\n"
    assert captured.err.startswith("Warning: ")
    assert "`--long chunk`" in captured.err


def test_pieces_are_lines_of_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    def stream(entry: Entry) -> Generator[Piece, None, None]:
        yield Piece("Once", log_probs=(-0.5,), tokens=(Token(7, "Once", -0.5, top=(Token(8, "Two", -1.5),)),))
        yield Piece("", finish_reason="stop", input_tokens=3, output_tokens=2)

    printing.pieces(Task.TEXT_GENERATION, [Entry("", "x"), Entry("", "y")], stream, Reporter(json=True))
    counts = {"finish_reason": "stop", "input_tokens": 3, "output_tokens": 2, "truncated_tokens": 0}
    tables = {
        "output_log_probs": [-0.5],
        "token_ids": [[7, 8]],
        "token_texts": [["Once", "Two"]],
        "token_log_probs": [[-0.5, -1.5]],
        "token_special": [[False, False]],
    }
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        {"index": index, "text_output": text, **more}
        for index in (0, 1)
        for text, more in (("Once", tables), ("", counts))
    ]


def test_a_stream_that_fails_ends_its_line_and_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    closed = []

    def stream(entry: Entry) -> Generator[Piece, None, None]:
        try:
            yield Piece("Once")
            raise ServerBusy("gone")
        finally:
            closed.append(entry.place)

    with pytest.raises(ServerBusy, match="Text 1: gone"):
        printing.pieces(Task.TEXT_GENERATION, [Entry("Text 1", "x"), Entry("Text 2", "y")], stream, Reporter())
    assert capsys.readouterr().out == "Once\n"
    assert closed == ["Text 1"]
