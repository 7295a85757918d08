"""Batch jobs by the command line: locks, changed inputs, a full disk, thresholds, shards, publishing."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hfx.batch.folder import Folder
from hfx.batch.job import model_record
from hfx.batch.options import RunOptions
from hfx.batch.plan import PlannedJob
from hfx.batch.progress import check_job
from hfx.batch.rows import labels_of
from hfx.errors import JobError
from tests.rigs.files.batch_jobs import CLASSIFIER, GENERATOR, TREE, CommandLine, Opened, output_rows, table, texts
from tests.rigs.machine.waiting import wait_until

pytestmark = pytest.mark.slow
SMALL = ("--mini-batch-size", "2")
LIMITED = """
import resource, sys
from hfx.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(main(["batch", *sys.argv[2:]]))
"""


@pytest.fixture
def unfinished(batch: CommandLine, classifier: Opened, tmp_path: Path) -> Path:
    """The folder of a job of three chunks, of which the first is done; `tmp_path/a.csv` is its input."""
    classifier.plan(tmp_path / "job", [texts(tmp_path / "a.csv", 6)], size=2)
    classifier.score(PlannedJob.read(Folder(tmp_path / "job")), [0])
    return tmp_path / "job"


def refused(batch: CommandLine, folder: Path, reason: str, *words: str, code: int = 2) -> str:
    """Check that `resume` ends with `code` and `reason`, in good English and without a new part; return the output."""
    before = sorted(path.name for path in folder.rglob("*"))
    found, text = batch("resume", folder, *words)
    assert (found, reason in text) == (code, True), text
    assert "Traceback" not in text and "Unexpected" not in text
    assert sorted({path.name for path in folder.rglob("*")} - {"log.jsonl", "lock"}) == sorted(
        {*before} - {"log.jsonl", "lock"}
    )
    return text


def test_a_run_that_is_refused_leaves_nothing(batch: CommandLine, tmp_path: Path) -> None:
    words = batch.new(CLASSIFIER, tmp_path / "job", texts(tmp_path / "a.csv", 2))
    code, text = batch(*words, "--column", "body")
    assert (code, "--column" in text) == (2, True), text
    assert not (tmp_path / "job").exists()


def test_a_package_that_a_worker_lacks_is_named_without_a_traceback(
    batch: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = "raise ModuleNotFoundError(\"No module named 'tokenizers'\", name='tokenizers')"
    (tmp_path / "tokenizers.py").write_text(absent, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    code, text = batch(*batch.new(CLASSIFIER, tmp_path / "job", texts(tmp_path / "a.csv", 2)))
    assert (code, "Traceback" in text) == (2, False), text
    assert "This needs the package tokenizers" in text and "pip install" in text


def test_what_has_changed_since_the_plan_is_refused(
    unfinished: Path, batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    source, job_file = tmp_path / "a.csv", unfinished / "job.json"
    whole, job = source.read_bytes(), job_file.read_text()
    model = model_record(classifier.model, labels_of(classifier.model, {}))

    def check() -> None:
        """Check the job in this process, as `resume` does once a worker has opened the model."""
        check_job(PlannedJob.read(Folder(unfinished)), model, RunOptions(str(batch.repository)))

    source.write_bytes(whole.replace(b"awful", b"great"))
    os.utime(source, (5, 5))
    refused(batch, unfinished, "it has changed since the job was planned")
    source.write_bytes(whole[:-9])
    with pytest.raises(JobError, match="bytes, and had"):
        check()
    source.unlink()
    refused(batch, unfinished, "No such file")
    source.write_bytes(whole)
    check()
    for old, new, reason in (
        ('"onnxruntime": "', '"onnxruntime": "0.', "onnxruntime"),
        ('"files": "', '"files": "0', "was exported again since the job was planned"),
        ('"positive"', '"brilliant"', "is another model"),
    ):
        assert old in job
        job_file.write_text(job.replace(old, new, 1))
        with pytest.raises(JobError, match=reason):
            check()
    job_file.write_text(job.replace('"instructions": [', '"instructions": ["sve",', 1))
    refused(batch, unfinished, "--mixed-processors")
    os.utime(source, (5, 5))  # touched, and equal
    batch.done("resume", unfinished, "--mixed-processors")
    expected = classifier.run(tmp_path / "whole", [source])
    assert (unfinished / "predictions.csv").read_bytes() == expected


def test_a_new_job_is_not_mixed_with_another(unfinished: Path, batch: CommandLine, tmp_path: Path) -> None:
    code, text = batch(*batch.new(CLASSIFIER, unfinished, tmp_path / "a.csv"))
    assert code == 2 and "already has a batch job" in text and "hfx batch resume" in text
    for words, reason in (([], "other inputs or settings"), (["--keep-columns", "id"], "other inputs or settings")):
        name = "a.csv" if words else "b.csv"
        source = texts(tmp_path / "b.csv", 6) if not words else tmp_path / name
        code, text = batch(*batch.new(CLASSIFIER, unfinished, source, *SMALL, "--shard", "1/2", *words))
        assert code == 2 and reason in text
    other = (unfinished / "job.json").read_text().replace('"instructions": [', '"instructions": ["sve",', 1)
    (unfinished / "job.json").write_text(other)
    code, text = batch(*batch.new(CLASSIFIER, unfinished, tmp_path / "a.csv", *SMALL, "--shard", "1/2"))
    assert code == 2 and "--mixed-processors" in text
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    code, text = batch(*batch.new(CLASSIFIER, tmp_path / "other", tmp_path / "a.csv"))
    assert code == 2 and "thesis.txt" in text


def test_only_one_of_two_concurrent_resumes_runs(unfinished: Path, batch: CommandLine) -> None:
    folder = Folder(unfinished)
    with folder.locked():
        assert batch.value("show", unfinished)["state"] == "Running"
        refused(batch, unfinished, "Another process is working on")
        refused(batch, unfinished, "Another process is working on", "--shard", "1/2")
        assert batch("publish", unfinished)[0] == 2
    with folder.locked(shared=True), folder.locked(shared=True), pytest.raises(JobError), folder.locked():
        pass
    first, second = (batch.start("resume", unfinished) for _ in range(2))
    codes = sorted(running.wait(60) for running in (first, second))
    printed = "".join(running.communicate()[0] for running in (first, second))
    assert codes in ([0, 2], [0, 0]) and (codes[1] == 0 or "Another process is working on" in printed), printed


def test_a_full_disk_keeps_finished_parts_and_the_job_can_resume(
    batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    rows = [{"text": f"A garden of {n}. " * 40} for n in range(60)]
    source = table(tmp_path / "a.csv", rows)
    words = batch.new(CLASSIFIER, tmp_path / "job", source, "--mini-batch-size", "10", "--keep-columns", "all")
    expected = classifier.run(tmp_path / "whole", [source], size=10, keep_columns="all")
    limit = 1024 * (len(expected) // 1024 - 8)  # room for each part, and not for the output
    ended = limited(limit, words)
    assert ended.returncode == 3 and "No room left to write" in ended.stderr and "resume" in ended.stderr
    assert len([*tmp_path.glob("job/parts/0*")]) == 6 and not list(tmp_path.rglob(".writing*"))
    shutil.rmtree(tmp_path / "job")
    ended = limited(6000, words)
    assert ended.returncode == 3 and not list(tmp_path.rglob(".writing*"))  # no room for a part
    batch.done("resume", tmp_path / "job")
    assert (tmp_path / "job" / "predictions.csv").read_bytes() == expected


def limited(size: int, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `hfx batch WORDS` in a process whose files can't be larger than `size` bytes."""
    return subprocess.run([sys.executable, "-c", LIMITED, str(size), *words], capture_output=True, text=True, cwd=TREE)


def test_error_rows_above_the_threshold_end_the_run(batch: CommandLine, classifier: Opened, tmp_path: Path) -> None:
    source = table(tmp_path / "a.jsonl", [{"text": 5 if n % 4 == 0 else "Lovely."} for n in range(16)])
    expected = classifier.run(tmp_path / "whole", [source], size=2)
    words = batch.new(CLASSIFIER, tmp_path / "job", source, *SMALL, "--max-concurrency", "2")
    code, text = batch(*words, "--error-threshold", "1")
    assert code == 6 and "2 of 16 rows are errors" in text
    assert f"`hfx batch resume {tmp_path / 'job'} --error-threshold N`" in text
    done = len([*tmp_path.glob("job/parts/0*")])
    assert done >= 3
    assert batch.value("show", tmp_path / "job")["state"] == "Failed"
    for threshold in ("3", "20%"):
        assert batch("resume", tmp_path / "job", "--error-threshold", threshold)[0] == 6
    assert not (tmp_path / "job" / "predictions.csv").exists()
    batch.done("resume", tmp_path / "job", "--error-threshold", "25%")
    assert (tmp_path / "job" / "predictions.csv").read_bytes() == expected
    assert batch("publish", tmp_path / "job", "--error-threshold", "3")[0] == 6
    assert batch("resume", tmp_path / "job", "--error-threshold", "101%")[0] == 2


def test_unfinished_jobs_are_published_only_with_partial_in_the_name(
    unfinished: Path, batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    code, text = batch("publish", unfinished)
    assert code == 2 and "2 of 3 parts" in text and "are missing: 1-2" in text
    value = batch.value("publish", unfinished, "--partial")
    assert (value["status"], value["rows"], value["missing_rows"]) == ("partial", 2, 4)
    assert [row["row"] for row in output_rows(unfinished / "predictions.partial.csv")] == ["1", "2"]
    assert not (unfinished / "predictions.csv").exists() and not (unfinished / "summary.json").exists()
    batch.done("resume", unfinished, "--shard", "2/2")
    batch.done("resume", unfinished, "--shard", "1/2")
    assert (unfinished / "predictions.csv").read_bytes() == classifier.run(tmp_path / "whole", [tmp_path / "a.csv"])


def test_the_shard_that_has_not_run_is_named(batch: CommandLine, tmp_path: Path) -> None:
    words = batch.new(CLASSIFIER, tmp_path / "job", texts(tmp_path / "a.csv", 8), *SMALL)
    assert "other shards" in batch.done(*words, "--shard", "1/2")
    code, text = batch("publish", tmp_path / "job")
    assert code == 2 and "0-1, of the shards 0/2" in text
    batch.done(*words, "--shard", "2/2")
    assert len(output_rows(tmp_path / "job" / "predictions.csv")) == 8


def test_a_cancelled_job_goes_on_later(batch: CommandLine, classifier: Opened, tmp_path: Path) -> None:
    source, folder = texts(tmp_path / "a.csv", 2000), tmp_path / "job"
    with batch.start(*batch.new(CLASSIFIER, folder, source, "--mini-batch-size", "20")) as running:
        wait_until(lambda: [*folder.glob("parts/0*")], "a part")
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
        assert running.stdout and f"`hfx batch resume {folder}` continues it" in running.stdout.read()
    assert batch.value("show", folder)["state"] != "Running"
    with batch.start("resume", folder, "--max-concurrency", "2") as running:
        wait_until(lambda: batch.value("show", folder)["state"] == "Running", "the resume")
        batch.done("cancel", folder)
        assert running.wait(60) == 130
    assert batch.value("show", folder)["state"] == "Cancelled"
    batch.done("resume", folder, "--workers", "2")
    assert (folder / "predictions.csv").read_bytes() == classifier.run(tmp_path / "whole", [source])
    code, text = batch("cancel", folder)
    assert code == 2 and "is completed" in text and batch.value("show", folder)["state"] == "Completed"


def test_only_a_resume_undoes_a_cancel(
    unfinished: Path, batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    batch.done("cancel", unfinished)
    words = batch.new(CLASSIFIER, unfinished, tmp_path / "a.csv", *SMALL)
    for shard in ("3/3", "2/3", "2/3"):  # the first has nothing left to do; a launcher starts the others again
        code, text = batch(*words, "--shard", shard)
        assert (code, "was cancelled" in text) == (130, True), text
    assert batch("publish", unfinished)[0] == 2
    assert Folder(unfinished).done() == {0} and batch.value("show", unfinished)["state"] == "Cancelled"
    batch.done("resume", unfinished, "--shard", "2/3")
    batch.done(*words, "--shard", "1/3")
    assert (unfinished / "predictions.csv").read_bytes() == classifier.run(tmp_path / "whole", [tmp_path / "a.csv"])


def test_standard_input_is_kept_for_a_resume(
    batch: CommandLine, classifier: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = texts(tmp_path / "a.csv", 4)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source.read_bytes())))
    batch.done(*batch.new(CLASSIFIER, tmp_path / "job", "-", "--input-format", "csv", *SMALL))
    (tmp_path / "job" / "parts" / "000001.csv").unlink()
    (tmp_path / "job" / "predictions.csv").unlink()
    batch.done("resume", tmp_path / "job")
    assert (tmp_path / "job" / "predictions.csv").read_bytes() == classifier.run(tmp_path / "whole", [source])
    code, text = batch(*batch.new(CLASSIFIER, tmp_path / "other", "-"))
    assert code == 2 and "--input-format" in text


def test_bad_rows_can_end_a_job_before_work(batch: CommandLine, tmp_path: Path) -> None:
    source = table(tmp_path / "a.jsonl", [{"text": "Lovely."}, {"text": None}])
    words = batch.new(CLASSIFIER, tmp_path / "job", source)
    code, text = batch(*words, "--on-bad-row", "fail")
    assert code == 2 and "Row 2: The column 'text'" in text
    assert "2 rows, 1 error" in batch.done(*words)


def test_sampling_is_the_same_by_any_number_of_workers(batch: CommandLine, generator: Opened, tmp_path: Path) -> None:
    source = texts(tmp_path / "a.csv", 10)
    options = ("--sample", "--seed", "5", "--max-tokens", "5", "--workers", "2", "--mini-batch-size", "3")
    batch.done(*batch.new(GENERATOR, tmp_path / "job", source, *options))
    settings: Any = {"do_sample": [True], "max_tokens": [5]}
    expected = generator.run(tmp_path / "whole", [source], seed=5, settings=settings)
    assert (tmp_path / "job" / "predictions.csv").read_bytes() == expected
