"""Storage other than a local disk: no locks, writers on other machines, or no write access."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hfx.batch.folder import Folder, storage
from hfx.errors import JobError
from hfx.process import ends_with_parent
from hfx.triton.process import MACHINES
from tests.rigs.files.azure_scripts import ENDPOINT, Rig
from tests.rigs.files.batch_jobs import CLASSIFIER, HFX, TREE, CommandLine, Opened, texts
from tests.rigs.machine.tiers import thinned
from tests.rigs.machine.waiting import wait_until

FLOCK = {"x86_64": 73, "aarch64": 32}
with_seccomp = pytest.mark.skipif(platform.machine() not in FLOCK, reason="the number of flock(2) is not known here")


def without_locks(error: int, *command: str) -> tuple[str, ...]:
    """Return `command` under a kernel that answers each flock(2) of it and its children with `error`."""
    machine, seccomp, _ = MACHINES[platform.machine()]
    rules = (
        (0x20, 0, 0, 4), (0x15, 0, 3, machine),  # load the machine, and skip unless it is this one
        (0x20, 0, 0, 0), (0x15, 0, 1, FLOCK[platform.machine()]),  # so with the system call
        (0x06, 0, 0, 0x00050000 | error),  # SECCOMP_RET_ERRNO
        (0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
    )  # fmt: skip
    program = b"".join(struct.pack("=HBBI", *rule) for rule in rules).hex()
    return ends_with_parent(command, signal.SIGKILL, system_calls=(str(seccomp), program))


def lockless(error: int, *words: str | Path) -> subprocess.Popen[str]:
    """Start `hfx batch WORDS` in such a process, whose output is one pipe."""
    command = without_locks(error, *HFX, *map(str, words))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=TREE)


# Two commands in one process.
SHOWN_AND_PUBLISHED = """
import sys
from hfx.cli import main
sys.exit(main(["batch", "show", sys.argv[1]]) or main(["batch", "publish", sys.argv[1], "--partial"]))
"""


@pytest.fixture
def unfinished(classifier: Opened, tmp_path: Path) -> Path:
    """The folder of a job of three chunks, of which the first is done; `tmp_path/a.csv` is its input."""
    classifier.score(classifier.plan(tmp_path / "job", [texts(tmp_path / "a.csv", 6)], size=2), [0])
    (tmp_path / "job" / "lock").touch()
    return tmp_path / "job"


@with_seccomp
@pytest.mark.slow
def test_a_job_without_locks_is_killed_and_resumed_to_the_same_bytes(
    batch: CommandLine, classifier: Opened, tmp_path: Path
) -> None:
    source, folder = texts(tmp_path / "a.csv", 600), tmp_path / "job"
    words = batch.new(CLASSIFIER, folder, source, "--mini-batch-size", "15", "--workers", "2")
    with lockless(errno.ENOLCK, *words) as running:
        wait_until(lambda: len([*folder.glob("parts/0*")]) > 3, "some parts")
        running.kill()
    assert not (folder / "predictions.csv").exists()
    with lockless(errno.ENOLCK, "resume", folder) as first, lockless(errno.ENOLCK, "resume", folder) as second:
        for running in (first, second):  # which nothing keeps from working at the same time
            text, _ = running.communicate(timeout=120)
            assert running.returncode == 0 and "600 rows, 0 errors" in text, text
            assert text.count("has no file locks") == 1
    assert (folder / "predictions.csv").read_bytes() == classifier.run(tmp_path / "whole", [source])


@with_seccomp
@pytest.mark.slow
@pytest.mark.parametrize("error", thinned([errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF]))
def test_storage_that_refuses_locks_in_any_way_is_accepted(error: int, unfinished: Path) -> None:
    command = without_locks(error, sys.executable, "-c", SHOWN_AND_PUBLISHED, str(unfinished))
    done = subprocess.run(command, capture_output=True, text=True, cwd=TREE, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Paused" in done.stdout and "2 rows, 0 errors" in done.stdout


@with_seccomp
@pytest.mark.slow
def test_another_error_of_a_lock_is_refused(unfinished: Path) -> None:
    for words in (("show", unfinished), ("resume", unfinished)):
        with lockless(errno.EIO, *words) as running:
            text, _ = running.communicate(timeout=60)
        assert (running.returncode, ": Input/output error" in text) == (2, True), text
        assert "Unexpected" not in text and "Traceback" not in text


@with_seccomp
def test_an_endpoint_does_not_run_jobs_without_locks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig(tmp_path, capsys)
    rig.deploy()
    words = ("azure", "invoke", ENDPOINT, "--input", rig.files(2), "--job-name", "first", "--workspace", rig.workspace)
    with lockless(errno.ENOLCK, *words) as running:
        text, _ = running.communicate(timeout=60)
    assert (running.returncode, "no file locks" in text) == (2, True), text
    assert rig.show("first")["status"] == "Paused"
    rig.done("job", "resume", "--name", "first")
    assert rig.wait("first")["status"] == "Completed"


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


def read_only(folder: Path, *words: str) -> tuple[int, str]:
    """Return exit code and output of `hfx batch WORDS FOLDER` with a read-only `folder`."""
    command = ("unshare", "--mount", "--map-root-user", "sh", "-c", READ_ONLY, str(folder))
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a mount of one's own is not permitted: {error}")
    ended = subprocess.run([*command, *HFX, *words, str(folder)], capture_output=True, text=True, cwd=TREE, timeout=120)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("action", ["append_row", "summary_only"])
def test_a_finished_job_on_read_only_storage_is_resumed_with_its_summary(
    action: str, batch: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    words = batch.new(CLASSIFIER, folder, texts(tmp_path / "a.csv", 6), "--mini-batch-size", "2")
    first = batch.value(*words, "--output-action", action)
    code, text = read_only(folder, "resume", "--json")
    assert code == 0, text
    assert json.loads(text) == first
    (folder / "parts" / "000001.csv").unlink()
    code, text = read_only(folder, "resume")
    assert code == 2 and "Read-only file system" in text and "Unexpected" not in text


@pytest.mark.slow
def test_an_output_that_was_changed_is_published_again(batch: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    batch.done(*batch.new(CLASSIFIER, folder, texts(tmp_path / "a.csv", 6)))
    output, summary = folder / "predictions.csv", folder / "summary.json"
    whole = output.read_bytes(), summary.read_bytes()
    changed = whole[1].replace(b"predictions", b"parts/0")
    for path, content in ((output, whole[0][:-1]), (summary, b"["), (summary, b"{}"), (summary, changed)):
        path.write_bytes(content)
        assert "6 rows, 0 errors" in batch.done("resume", folder)
        assert (output.read_bytes(), summary.read_bytes()) == whole


@contextmanager
def writing(target: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is about to rename a file, which it does after a line of input."""
    program = (
        "import sys; from pathlib import Path; from hfx.batch.folder import new_file\n"
        "with new_file(Path(sys.argv[1])) as file: file.write(b'whole'); print(flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-c", program, str(target)]
    with subprocess.Popen(command, cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def test_an_error_without_a_number_keeps_its_reason(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="the file is no Parquet"), storage(tmp_path):
        raise OSError("the file is no Parquet")  # as pyarrow raises it


def test_only_temporary_files_of_dead_or_old_writers_are_removed(tmp_path: Path) -> None:
    folder, part = Folder(tmp_path), tmp_path / "parts" / "000000.csv"
    folder.parts.mkdir()
    with writing(tmp_path / "predictions.csv") as killed:
        killed.kill()
    [dead] = tmp_path.glob(".writing-*")
    young, old = (tmp_path / f".writing-{name}-000000.csv-1f" for name in ("00000000-7", "00000001-7"))
    earlier = tmp_path / ".writing-job.json-7-1f"  # as earlier versions named them
    for path in (young, old, earlier):
        path.touch()
    for path in (old, earlier):
        os.utime(path, (time.time() - 90_000, time.time() - 90_000))
    with writing(part) as alive, folder.locked():
        assert [*folder.parts.iterdir()]
        alive.communicate("\n", timeout=60)
    assert part.read_bytes() == b"whole" and not dead.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([young.name, "lock", "parts"])
