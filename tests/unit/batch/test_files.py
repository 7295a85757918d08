"""The files of a job: a crash leaves a file whole or absent, and damaged files are refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.batch.folder import SCRIPT_PART, Folder
from hfx.batch.job import read_job
from hfx.batch.options import RunOptions, Threshold
from hfx.batch.plan import PlannedJob, read_plan
from hfx.batch.progress import status_of
from hfx.batch.publish import publish
from hfx.errors import JobError, UsageError
from tests.rigs.files.batch_jobs import CommandLine, Opened, texts

PARTS = (".000000.csv.sha256", "000000.csv", ".000001.csv.sha256", "000001.csv")
FILES = ("plan.jsonl", "job.json", *PARTS, "predictions", "summary.json")


def test_each_file_is_on_the_disk_before_it_gets_its_name(
    classifier: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []

    def recorded(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def step(first: Any, *rest: Any, **options: Any) -> Any:
            path = str(Path(f"/proc/self/fd/{first}").readlink()) if isinstance(first, int) else str(first)
            calls.append((name, path))
            if name == "rename":
                calls.append(("size", str(Path(path).stat().st_size)))
            return call(first, *rest, **options)

        return step

    for name in ("fsync", "rename"):
        monkeypatch.setattr(os, name, recorded(name))
    classifier.run(tmp_path / "job", [texts(tmp_path / "a.csv", 3)], size=2)
    steps = iter(calls)
    for name in FILES:
        (flush, written), (rename, renamed), (_, size), (flush_folder, folder) = (next(steps) for _ in range(4))
        assert (flush, rename, flush_folder) == ("fsync", "rename", "fsync")
        assert written == renamed and name in Path(written).name and Path(written).name.startswith(".writing-")
        assert Path(folder) == Path(written).parent
        assert int(size) == next(path.stat().st_size for path in (tmp_path / "job").rglob(f"{name}*"))
    assert not list(steps)


def planned_job(model: Opened, folder: Path, file_name: str = "predictions.csv", rows: int = 4) -> Path:
    """Return the folder of a scored job of two chunks."""
    source = texts(folder / "a.csv", rows)
    model.score(model.plan(folder / "job", [source], size=2, file_name=file_name))
    return folder / "job"


def published(folder: Path) -> None:
    publish(PlannedJob.read(Folder(folder)), Threshold(-1))


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_a_damaged_part_is_named(ending: str, classifier: Opened, tmp_path: Path) -> None:
    folder = planned_job(classifier, tmp_path, f"out{ending}")
    first, second = (folder / "parts" / f"00000{n}{ending}" for n in (0, 1))
    (folder / "parts" / f".{first.name}.sha256").unlink()  # as in earlier versions: its content is checked, too
    whole = first.read_bytes(), second.read_bytes()
    cuts = range(1, len(whole[0]), 7 if ending == ".csv" else 397)
    damages = [b"", whole[1], *(whole[0][:-cut] for cut in cuts)]
    if ending != ".parquet":  # whose magic bytes and length stand at the end
        damages += [b"\xff" + whole[0][1:], whole[0] + whole[0], whole[0][:-2] + b'"\n', whole[0].replace(b",", b"", 1)]
    for damage in damages:
        first.write_bytes(damage)
        with pytest.raises(JobError) as caught:
            published(folder)
        assert str(first) in caught.value.message and "Delete it" in caught.value.fix
    assert not (folder / f"out{ending}").exists()
    first.write_bytes(whole[0])
    published(folder)


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_a_part_that_was_changed_is_not_published(ending: str, classifier: Opened, tmp_path: Path) -> None:
    folder = planned_job(classifier, tmp_path, f"out{ending}")
    part = folder / "parts" / f"000001{ending}"
    whole = part.read_bytes()
    changes = [at for at in range(len(whole)) if whole[at : at + 1].isdigit()]
    for at in changes[:: -max(1, len(changes) // 20)]:
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(JobError, match=f"000001{ending} is damaged: its SHA-256") as caught:
            published(folder)
        assert "hfx batch resume" in caught.value.fix
    part.unlink()
    classifier.go_on(folder, [])
    summary = json.loads((folder / "summary.json").read_bytes())
    assert summary["sha256"] == hashlib.sha256((folder / f"out{ending}").read_bytes()).hexdigest()
    assert part.read_bytes() == whole
    check = ["sha256sum", "--check", *sorted(path.name for path in (folder / "parts").glob(".*"))]
    assert subprocess.run(check, cwd=folder / "parts", check=True, capture_output=True).stdout.count(b"OK") == 2


def test_parts_without_a_sum_are_published_as_before(classifier: Opened, tmp_path: Path) -> None:
    folder = planned_job(classifier, tmp_path)
    published(folder)
    expected = (folder / "predictions.csv").read_bytes()
    for path in folder.glob("parts/.*"):
        path.unlink()
    published(folder)
    assert (folder / "predictions.csv").read_bytes() == expected


def test_other_files_in_the_parts_folder_are_not_parts(classifier: Opened, tmp_path: Path) -> None:
    folder = planned_job(classifier, tmp_path)
    published(folder)
    before = (folder / "predictions.csv").read_bytes()
    for name in ("1 copy.csv", "²", "7", "notes.txt", ".000009.csv", "000001.csv.bak~", "000001.3"):
        (folder / "parts" / name).write_text("not a part")
    (folder / "parts" / "000001.csv").unlink()
    assert (Folder(folder).done(), Folder(folder, SCRIPT_PART).endings()) == ({0}, {1: "3"})
    with pytest.raises(JobError, match=r"1 of 2 parts .*: 1\."):
        published(folder)
    (folder / "parts" / "000001.csv").mkdir()
    with pytest.raises(JobError, match="Is a directory"):
        published(folder)
    assert (folder / "predictions.csv").read_bytes() == before


def test_a_plan_that_is_not_whole_is_refused(classifier: Opened, tmp_path: Path) -> None:
    folder = planned_job(classifier, tmp_path)
    whole = (folder / "plan.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    damages = [b"", lines[0], b"".join(lines[:2]), lines[0] + lines[2], whole + lines[0], whole.replace(b"2", b"3", 1)]
    for damage in (*damages, b"[" * 100_000, b"7\n", b'{"source": 0}\n', b"\xff\n", whole[:-1]):
        (folder / "plan.jsonl").write_bytes(damage)
        with pytest.raises(JobError, match="is damaged"):
            read_plan(Folder(folder))
    (folder / "plan.jsonl").unlink()
    with pytest.raises(JobError, match="No such file"):
        read_plan(Folder(folder))


def test_a_job_with_any_value_of_another_kind_is_refused(classifier: Opened, tmp_path: Path) -> None:
    folder = planned_job(classifier, tmp_path)
    path = folder / "job.json"
    sound = path.read_text()
    values = json.loads(sound)

    def refused(reason: str) -> None:
        with pytest.raises((JobError, UsageError), match=reason):
            RunOptions.of(read_job(Folder(folder)).run)

    def damage(value: Any) -> None:
        """Check the refusal for each value in turn, replaced by values of other types."""
        places = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
        for place in places:
            kept = value[place]
            for other in ([[7]], {"a": {}}):
                value[place] = other
                path.write_text(json.dumps(values))
                refused("can't be read")
            value[place] = kept
            damage(kept)

    damage(values)
    for text in ("", "[]", "7", sound[:-9], "{" * 100_000, sound.replace('"format": 1', '"format": 2')):
        path.write_text(text)
        refused("can't be read")
    for name in ("../../x.csv", "/x.csv", "x.exe", "job.json", "", "a\\u0000.csv"):
        path.write_text(sound.replace('"predictions.csv"', f'"{name}"'))
        refused("can't be the output's name")
    path.unlink()
    refused("is not the folder of a batch job")


def test_a_job_that_can_not_be_read_is_listed(classifier: Opened, batch: CommandLine, tmp_path: Path) -> None:
    folder = planned_job(classifier, tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "job.json").write_text("{")
    jobs = batch.value("list", tmp_path)["jobs"]
    assert [(job["folder"], job["state"]) for job in jobs] == [
        (str(tmp_path / "damaged"), "Unreadable"),
        (str(folder), "Paused"),
    ]


def test_the_rate_of_a_shard_counts_from_the_start_of_its_run(classifier: Opened, tmp_path: Path) -> None:
    folder = Folder(planned_job(classifier, tmp_path))
    folder.log({"event": "run", "shard": "0/2"})
    folder.log({"event": "chunk", "shard": "0/2", "number": 0, "rows": 2, "errors": {}})
    with folder.locked(shared=True):
        assert (status_of(folder).rows_per_second or 0) > 2 / 60


def test_a_damaged_log_does_not_matter(classifier: Opened, tmp_path: Path) -> None:
    folder = planned_job(classifier, tmp_path)
    Folder(folder).log({"event": "failed", "error": "a name with half a character: \udc80"})
    with (folder / "log.jsonl").open("ab") as file:
        file.write(b'7\n[]\n{"eve\xff\n' + b"[" * 100_000 + b'\n{"event": "chunk", "time": 1.0}\n{"event": "run"')
    status = status_of(Folder(folder))
    assert (status.done, status.state, status.errors) == (4, "Failed", {})
    published(folder)
    (folder / "parts" / "000001.csv").unlink()
    with pytest.raises(JobError, match="are missing"):
        published(folder)
