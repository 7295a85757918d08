"""A batch job that is killed at any moment can continue, and its output has the same bytes."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from hfx.batch.worker import COMMAND
from hfx.triton.liveness import read_process
from tests.rigs.files.batch_jobs import CLASSIFIER, CommandLine, Opened, echo, table, texts
from tests.rigs.machine.faults import Killer
from tests.rigs.machine.tiers import full
from tests.rigs.machine.waiting import wait_until

JOB = """
from pathlib import Path
from tests.rigs.files.batch_jobs import echo

def work(arm, folder, source, size):
    model = echo()
    arm()
    Path(folder).mkdir(exist_ok=True)
    model.go_on(Path(folder), [source], size=int(size), keep_columns="all")
"""


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with Killer(JOB) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("size", [full(1), 4, full(64)])
def test_a_kill_at_any_file_change_does_not_change_the_output(size: int, killer: Killer, memory: Path) -> None:
    source = table(memory / "a.csv", [{"text": text} for text in ("a", "", "b\r\n", '"', "é")])
    expected = echo().run(memory / "whole", [source], size=size, keep_columns="all")
    parts = {path.name: path.read_bytes() for path in (memory / "whole" / "parts").iterdir()}
    changes = killer.kill(0, str(memory / "0"), str(source), str(size))
    assert changes and changes > 20
    for at in range(1, changes + 1):
        folder = memory / str(at)
        words = str(folder), str(source), str(size)
        assert killer.kill(at, *words) is None
        output = folder / "predictions.csv"
        assert not output.exists() or output.read_bytes() == expected
        there = list(folder.glob("parts/*.csv"))
        assert all(path.read_bytes() == parts[path.name] for path in there)
        killer.kill(1 + 7 * at % changes, *words)  # the process that resumes the job is killed, too
        assert killer.kill(0, *words) is not None
        assert output.read_bytes() == expected
        assert {path.name for path in folder.iterdir()} == {
            "job.json",
            "plan.jsonl",
            "parts",
            "lock",
            output.name,
            "summary.json",
        }


def ended(pids: list[int]) -> bool:
    """Return whether none of these processes runs."""
    return all(process is None or process.stat[0] in "ZX" for process in map(read_process, pids))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [full(1), 2])
def test_a_job_killed_by_sigkill_resumes_to_the_same_bytes(
    workers: int, batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    source = texts(tmp_path / "a.csv", 600)
    expected = classifier.run(tmp_path / "whole", [source], keep_columns="id")
    folder = tmp_path / "job"
    options = ("--column", "text", "--keep-columns", "id", "--mini-batch-size", "10", "--workers", str(workers))
    words = batch.new(CLASSIFIER, folder, source, *options)
    for count in (3, 20):
        with batch.start(*words) as running:
            wait_until(partial(enough, folder, count), f"{count} parts")
            children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            running.send_signal(signal.SIGKILL)
        assert len(children) == workers
        wait_until(partial(ended, [int(pid) for pid in children]), "the end of the workers")
        assert not (folder / "predictions.csv").exists()
        words = ["resume", str(folder)]
    assert "600 rows, 0 errors" in batch.done("resume", folder)
    assert (folder / "predictions.csv").read_bytes() == expected


def enough(folder: Path, count: int) -> bool:
    """Return whether the job has `count` parts."""
    return len([*folder.glob("parts/0*")]) >= count


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers abort at each text with the word poison."""
    monkeypatch.setattr("hfx.batch.local.COMMAND", (sys.executable, "-m", "tests.rigs.files.batch_poison"))


def poisonous(path: Path, rows: int, *poisons: int) -> Path:
    """Write a file of texts in which the rows `poisons` (from 1) are poisonous."""
    return table(path, [{"text": f"{'A poison' if n in poisons else 'A garden'} of {n}."} for n in range(1, rows + 1)])


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
def test_only_the_row_that_ends_the_process_becomes_an_error(
    batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    source = poisonous(tmp_path / "a.csv", 40, 22)
    expected = classifier.run(tmp_path / "whole", [source]).splitlines()
    words = batch.new(CLASSIFIER, tmp_path / "job", source, "--mini-batch-size", "8", "--max-concurrency", "8")
    assert "40 rows, 1 error" in batch.done(*words)
    found = (tmp_path / "job" / "predictions.csv").read_bytes().splitlines()
    expected[22] = b"22,,,,,,The process that computes it ends every time.,"
    assert found == expected
    log = batch.done("logs", tmp_path / "job")
    assert "errors={}" not in log and not re.search(r"seconds=\d*\.\d{6}", log)
    assert log.count(" death ") == 5 and log.count("row=22") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
def test_a_worker_that_dies_once_is_replaced_without_error_rows(
    batch: CommandLine, classifier: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("START_ONCE", "POISON_ONCE"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    source = poisonous(tmp_path / "a.csv", 40, 22, 39)
    expected = classifier.run(tmp_path / "whole", [source])
    words = batch.new(CLASSIFIER, tmp_path / "job", source, "--mini-batch-size", "4", "--workers", "2")
    assert "40 rows, 0 errors" in batch.done(*words)
    assert (tmp_path / "job" / "predictions.csv").read_bytes() == expected
    assert batch.done("logs", tmp_path / "job").count(" death ") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
def test_starts_that_fail_between_chunks_that_are_done_are_not_counted_together(
    batch: CommandLine, classifier: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POISON_ONCE", str(tmp_path / "{}"))
    monkeypatch.setenv("EVERY_OTHER", str(tmp_path / "started"))
    source = poisonous(tmp_path / "a.csv", 40, 9, 17, 25)
    expected = classifier.run(tmp_path / "whole", [source])
    words = batch.new(CLASSIFIER, tmp_path / "job", source, "--mini-batch-size", "4", "--max-concurrency", "1")
    assert "40 rows, 0 errors" in batch.done(*words)
    assert (tmp_path / "job" / "predictions.csv").read_bytes() == expected
    assert batch.done("logs", tmp_path / "job").count(" death ") == 6


KILLED = "import os; os.kill(os.getpid(), 9)"
GREEDY = "import sys; open(sys.argv[1], 'w').write('0'); len(bytearray(200 << 20))"


@pytest.mark.slow
def test_memory_is_blamed_only_for_what_the_kernel_has_killed_for_it(
    batch: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = batch.new(CLASSIFIER, tmp_path / "job", texts(tmp_path / "a.csv", 4))
    monkeypatch.setattr("hfx.batch.local.COMMAND", (sys.executable, "-c", KILLED))
    code, text = batch(*words)
    assert code == 5 and "(killed by signal 9)" in text and "memory" not in text
    with group_of_memory(30 << 20) as processes:
        monkeypatch.setattr("hfx.batch.local.COMMAND", (sys.executable, "-c", GREEDY, str(processes)))
        code, text = batch(*words)
    assert code == 5 and "memory" in text


@contextmanager
def group_of_memory(limit: int) -> Iterator[Path]:
    """Yield the list of processes of a new cgroup with `limit` bytes; skip if this user can't make one."""
    is_old = Path("/sys/fs/cgroup/memory").is_dir()
    group = Path("/sys/fs/cgroup", "memory" if is_old else "", f"hfx-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup: {error}")
    try:
        try:
            (group / ("memory.limit_in_bytes" if is_old else "memory.max")).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no limit of memory: {error}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


@pytest.mark.slow
def test_workers_that_die_at_every_row_end_the_run_without_error_rows(
    batch: CommandLine, classifier: Opened, tmp_path: Path, poisoned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfx.batch.local.DEATHS_IN_A_ROW", 4)
    source = poisonous(tmp_path / "a.csv", 4, 1, 2, 3, 4)
    code, text = batch(*batch.new(CLASSIFIER, tmp_path / "job", source))
    assert code == 5 and "answered nothing in between" in text
    assert not [*tmp_path.glob("job/parts/*")]
    monkeypatch.setattr("hfx.batch.local.COMMAND", COMMAND)
    batch.done("resume", tmp_path / "job")
    assert (tmp_path / "job" / "predictions.csv").read_bytes() == classifier.run(tmp_path / "whole", [source])
