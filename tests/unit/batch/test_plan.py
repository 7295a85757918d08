"""The plan of a job: its chunks follow one another, it is read as it was written, and inputs may not change."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from hfx.batch.folder import PLAN, Folder
from hfx.batch.job import Job, JobModel, Output, this_machine, write_job
from hfx.batch.plan import (
    Plan,
    PlannedChunk,
    PlannedJob,
    Shard,
    check_inputs,
    check_rows,
    count_rows,
    cut_inputs,
    read_plan,
    rows_of,
    write_plan,
)
from hfx.batch.rows import NumberedRow
from hfx.errors import InputChanged, JobError, UsageError
from hfx.rows import RowError, Source, find_sources


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Source, ...]:
    (tmp_path / "a.csv").write_text("text\n" + "".join(f"a{number}\n" for number in range(5)))
    (tmp_path / "b.csv").write_text("text\nb0\nb1\n")
    return find_sources([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "job" / "parts").mkdir(parents=True)
    return Folder(tmp_path / "job")


def planned(sources: tuple[Source, ...]) -> list[PlannedChunk]:
    return list(cut_inputs(sources, ["text"], 2))


def test_chunks_and_their_rows_are_numbered_over_all_files(sources: tuple[Source, ...]) -> None:
    chunks = planned(sources)
    assert [(chunk.number, chunk.source, list(chunk.rows)) for chunk in chunks] == [
        (0, 0, [1, 2]),
        (1, 0, [3, 4]),
        (2, 0, [5]),
        (3, 1, [6, 7]),
    ]
    assert count_rows(chunks) == 7


def test_rows_are_read_in_order_with_their_numbers(sources: tuple[Source, ...]) -> None:
    rows = list(rows_of(sources, planned(sources)))
    assert [row.row.cells["text"] for row in rows] == ["a0", "a1", "a2", "a3", "a4", "b0", "b1"]
    assert [row.number for row in rows] == list(range(1, 8))
    assert [row.chunk for row in rows] == [0, 0, 1, 1, 2, 3, 3]


def test_the_last_row_of_a_chunk_that_has_changed_is_not_given_out(sources: tuple[Source, ...]) -> None:
    chunks = planned(sources)
    Path(sources[0].name).write_text(Path(sources[0].name).read_text().replace("a3", "c3"))
    rows = rows_of(sources, chunks)
    assert [next(rows).row.cells["text"] for _ in range(3)] == ["a0", "a1", "a2"]
    with pytest.raises(InputChanged):
        next(rows)


def test_the_first_row_that_cannot_be_answered_is_named(sources: tuple[Source, ...]) -> None:
    def check(item: NumberedRow) -> None:
        if item.number >= 4:
            raise UsageError("It is too long.", "Shorten it.")

    with pytest.raises(UsageError, match=r"^Row 4: It is too long\."):
        check_rows(sources, planned(sources), check)
    check_rows(sources, planned(sources)[:1], check)


def test_a_plan_is_read_as_it_was_written(sources: tuple[Source, ...], folder: Folder) -> None:
    chunks = planned(sources)
    assert write_plan(folder, iter(chunks)) == read_plan(folder) == chunks
    assert write_plan(folder, []) == read_plan(folder) == []


def test_a_damaged_plan_is_refused(sources: tuple[Source, ...], folder: Folder) -> None:
    write_plan(folder, planned(sources))
    path = folder.path / PLAN
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = [
        *(b"".join(lines[:at]) for at in range(len(lines))),
        *(b"".join([*lines[:at], *lines[at + 1 :]]) for at in range(len(lines))),
        b"".join([lines[1], lines[0], *lines[2:]]),
        b"".join(lines).replace(b'"first_row": 3', b'"first_row": 4'),
        b"".join([*lines, b"\n"]),
        b"".join([*lines, lines[-1]]),
        b"".join([b"[]\n", *lines]),
        b"".join([b'{"source": 0, "first_row": 1}\n', *lines]),
        b"".join([b'{"sour\n', *lines]),
        b"[" * 100_000,
        b'{"other": 1}\n' + json.dumps({"sha256": hashlib.sha256(b'{"other": 1}\n').hexdigest()}).encode() + b"\n",
    ]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(JobError, match="is damaged"):
            read_plan(folder)


def test_a_job_is_read_with_its_plan(sources: tuple[Source, ...], folder: Folder) -> None:
    model = JobModel("model", "text-classification", "", "", ())
    output = Output("append_row", "predictions.csv", (), "")
    job = Job(model, sources, {"text_input": "text"}, {}, 1, output, 2, this_machine(False), {})
    write_job(folder, job)
    write_plan(folder, planned(sources))
    read = PlannedJob.read(folder)
    assert (read.job, read.chunks, read.rows) == (job, planned(sources), 7)


def test_chunks_without_a_part_are_missing_and_shards_share_them(sources: tuple[Source, ...], folder: Folder) -> None:
    plan = Plan(folder, planned(sources))
    folder.part(1, ".csv").touch()
    folder.part(2, ".csv").touch()
    assert [chunk.number for chunk in plan.missing()] == [0, 3]
    assert [[chunk.number for chunk in plan.share(Shard(index, 3))] for index in range(3)] == [[0], [1], [2, 3]]
    assert [[chunk.number for chunk in plan.missing(Shard(index, 3))] for index in range(3)] == [[0], [], [3]]


def test_inputs_that_have_changed_since_they_were_planned_are_refused(sources: tuple[Source, ...]) -> None:
    chunks = planned(sources)
    check_inputs(sources, chunks)
    second = Path(sources[1].name)
    os.utime(second, (1, 1))
    check_inputs(sources, chunks)  # only its time has changed
    second.write_text("text\nb0\nb2\n")
    with pytest.raises(InputChanged):
        check_inputs(sources, chunks)
    os.utime(second, ns=(0, int(sources[1].modified)))
    check_inputs(sources, chunks)  # the same size and time: the rows are compared when they are read
    second.write_text("text\nb0\n")
    with pytest.raises(InputChanged, match=r"has 8 bytes, and had 11"):
        check_inputs(sources, chunks)
    with pytest.raises(RowError):
        list(cut_inputs(sources, ["other"], 2))
