"""Batch jobs over hostile rows, names and folders: every row has a result, and nothing else is touched."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.rigs.files.batch_jobs import CLASSIFIER, CommandLine, Opened, output_rows, table, texts

pytestmark = pytest.mark.slow

ODD = ("-rf [b]*?\n%20 #'\"é😀$(touch x)\\\udcff", "n" * 240)


def test_hostile_rows_are_errors_and_their_neighbours_are_not(
    batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    good = '{"text": "The garden is lovely."}'
    bad = (
        '{"text": ' + "[" * 10_000_000,
        '{"text": ' + "9" * 1_000_000 + "}",
        '{"text": "\\ud800"}',
        '{"text": ["a"]}',
        '{"text": "a", "text": "b"}',
        '{"text": 1e999}',
        "\x00",
        "null",
        '{"text": "' + "\\u0007" * 10,
    )
    large = json.dumps({"text": "lovely " * 700_000})
    lines = [good, *(line for each in bad for line in (each, good)), large]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    began = time.monotonic()
    batch.done(*batch.new(CLASSIFIER, tmp_path / "job", tmp_path / "a.jsonl", "--mini-batch-size", "4"))
    assert time.monotonic() - began < 30
    rows = output_rows(tmp_path / "job" / "predictions.csv")
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        assert bool(row["error"]) == (line in bad), row
        assert len(row["error"] or "") < 300 and "\n" not in (row["error"] or "")
    answers = [{**row, "row": ""} for row, line in zip(rows, lines, strict=True) if line == good]
    assert all(answer == answers[0] for answer in answers)
    (tmp_path / "good.jsonl").write_text(good + "\n")
    classifier.run(tmp_path / "whole", [tmp_path / "good.jsonl"])
    assert {**output_rows(tmp_path / "whole" / "predictions.csv")[0], "row": ""} == answers[0]


@pytest.mark.parametrize("name", ODD)
def test_files_and_folders_with_odd_names_work_in_every_batch_command(
    name: str, batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    source = texts(folder / f"{name[:200]}.csv", 3)
    classifier.score(classifier.plan(folder / "job", [source], size=1), [0, 1])
    for words in (("show",), ("logs",), ("resume",), ("show",), ("publish",)):
        assert batch.value(*words, folder / "job")
    assert batch.done("list", folder)
    assert len(output_rows(folder / "job" / "predictions.csv")) == 3
    assert sorted(path.name for path in folder.iterdir()) == sorted([source.name, "job"])
    (folder / "job" / "parts" / "000000.csv").unlink()
    source.write_bytes(source.read_bytes().replace(b"0", b"9"))
    code, text = batch("resume", folder / "job")
    assert code == 2 and "changed since" in text


def test_an_output_that_is_not_a_new_folder_is_refused_and_left_alone(batch: CommandLine, tmp_path: Path) -> None:
    source = texts(tmp_path / "a.csv", 2)
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(tmp_path.iterdir())
    places = ["file", "file/job", "dangling", "loop", ".", "a.csv"]
    for place in (*(tmp_path / name for name in places), Path("/dev/null"), Path("/proc/job"), Path("/sys/job")):
        code, text = batch(*batch.new(CLASSIFIER, place, source))
        assert (code, "Unexpected" in text, "Traceback" in text) == (2, False, False), text
    assert sorted(tmp_path.iterdir()) == before


def test_an_input_that_is_not_a_regular_file_is_refused(batch: CommandLine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "nowhere")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "folder.csv").mkdir()
    names = ["pipe.csv", "dangling.csv", "zero.csv", "folder.csv", "absent.csv", "*.tsv"]
    for place in (*(tmp_path / name for name in names), "/dev/zero", "/proc/self/mem", "/dev/stdin", ""):
        code, text = batch(*batch.new(CLASSIFIER, tmp_path / "job", str(place)))
        assert (code, "Unexpected" in text, "Traceback" in text) == (2, False, False), text
        assert not (tmp_path / "job" / "job.json").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["parts/000000.csv", "parts/.000000.csv.sha256", "plan.jsonl", "job.json"])
def test_a_pipe_in_a_job_is_refused(name: str, batch: CommandLine, classifier: Opened, tmp_path: Path) -> None:
    classifier.run(tmp_path / "job", [texts(tmp_path / "a.csv", 4)], size=2)
    (tmp_path / "job" / name).unlink()
    (tmp_path / "job" / "predictions.csv").unlink()
    os.mkfifo(tmp_path / "job" / name)
    code, text = batch("resume", tmp_path / "job")
    said = (
        "is not the folder of a batch job"
        if name == "job.json"
        else f"{name} can't be read or written: Not a regular file"
    )
    assert (code, said in text) == (2, True), text


@pytest.mark.timeout(60)
def test_pipes_in_place_of_the_log_and_lock_block_no_command(
    batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    planned = classifier.plan(tmp_path / "job", [texts(tmp_path / "a.csv", 4)], size=2)
    classifier.score(planned, [0])
    for name in ("log.jsonl", "lock"):
        (tmp_path / "job" / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / "job" / name)
    for words, said in ((("show",), "Paused"), (("logs",), ""), (("resume",), "4 rows, 0 errors")):
        code, text = batch(*words, tmp_path / "job")
        assert (code, said in text) == (0, True), text


def test_links_in_a_job_folder_are_neither_read_nor_written_through(
    batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    precious = table(tmp_path / "precious", [{"row": "1", "error": ""}])
    kept = precious.read_bytes()
    source = texts(tmp_path / "a.csv", 4)
    classifier.score(classifier.plan(tmp_path / "job", [source], size=2))
    part = tmp_path / "job" / "parts" / "000001.csv"
    whole = part.read_bytes()
    for target in (precious, Path("/dev/zero"), tmp_path / "absent", part):
        part.unlink()
        part.symlink_to(target)
        code, text = batch("resume", tmp_path / "job")
        assert (code, "Unexpected" in text) == (2, False) and "000001.csv" in text, text
    part.unlink()
    part.write_bytes(whole)
    for name in ("predictions.csv", "summary.json"):
        (tmp_path / "job" / name).unlink(missing_ok=True)
        (tmp_path / "job" / name).symlink_to(precious)
    batch.done("resume", tmp_path / "job")
    assert precious.read_bytes() == kept and len(output_rows(tmp_path / "job" / "predictions.csv")) == 4
