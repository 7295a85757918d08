"""The mini-batches of a job through processes of a scoring script: tried again, killed when late, started anew.

A mini-batch is the unit: its results are a part, written by the process and renamed here, so that a killed job goes on
with the parts that are missing. A process that ends, hangs or prints disturbs no other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from hfx.batch.azure import worker
from hfx.batch.azure.deployment import DEFAULT_MINI_BATCH, Deployment
from hfx.batch.azure.jobs import AzureJob
from hfx.batch.folder import storage, temporary, write_file, write_sum
from hfx.errors import JobCancelled, StorageFull, TooManyErrors, UsageError
from hfx.triton.process import ends_with_parent, exit_reason, kill

TICK_SECONDS = 0.1
GRACE_SECONDS = 10.0  # for what a script does when its process ends

log = logging.getLogger("hfx.batch.azure")
Replies = queue.SimpleQueue[tuple["ScriptProcess", dict[str, Any] | None]]


def run_script(job: AzureJob, deployment: Deployment) -> None:
    """Score the mini-batches whose parts are missing. Raises what ends the job early."""
    runner = ScriptRunner(job, deployment)
    try:
        runner.run()
        runner.close()
    finally:
        runner.kill()


class ScriptProcess:
    """A process of the script. Its replies, and None at its end, go to a queue.

    `batch` is the mini-batch that it works on, which must be done at `deadline`.
    """

    def __init__(self, number: int, job: AzureJob, deployment: Deployment, replies: Replies) -> None:
        self.number = number
        self.ready = False
        self.batch: int | None = None
        self.deadline = math.inf
        requests, ours = os.pipe()
        self._requests = os.fdopen(ours, "wb", buffering=0)
        self._replies, theirs = os.pipe()
        self.popen = _start(number, job, deployment, (requests, theirs))
        for descriptor in (requests, theirs):
            os.close(descriptor)
        threading.Thread(target=self._read, args=(replies,), daemon=True).start()

    def give(self, batch: int, request: dict[str, Any], seconds: float) -> None:
        """Let it score a mini-batch; if it has ended, the queue gets to know."""
        self.batch, self.deadline = batch, time.monotonic() + seconds
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(request).encode() + b"\n")

    def done(self) -> int:
        """The mini-batch that it worked on; it has nothing to do then."""
        assert self.batch is not None
        batch, self.batch, self.deadline = self.batch, None, math.inf
        return batch

    def is_late(self) -> bool:
        """Whether it should have replied by now; one that has ended has a moment for what it wrote."""
        if self.popen.poll() is not None:
            self.deadline = min(self.deadline, time.monotonic() + 10 * TICK_SECONDS)
        return time.monotonic() > self.deadline

    def close(self) -> None:
        """Let it end when it has nothing to do."""
        self._requests.close()

    def kill(self) -> str:
        """End it with all that it has started; how it had ended before."""
        code = self.popen.poll()
        self.close()
        kill(self.popen)
        self.popen.wait()
        return "run() took too long" if code is None else f"its process ended ({exit_reason(code)})"

    def _read(self, replies: Replies) -> None:
        with os.fdopen(self._replies, encoding="utf-8") as file:
            for line in file:
                replies.put((self, json.loads(line)))
        self.popen.wait()
        replies.put((self, None))


def _start(number: int, job: AzureJob, deployment: Deployment, pipes: tuple[int, int]) -> subprocess.Popen[bytes]:
    folder, settings = job.folder.path, deployment.settings
    own = {"AZUREML_MODEL_DIR": str(folder / "model"), "AZUREML_BI_OUTPUT_PATH": job.invocation.output}
    arguments = [str(deployment.scoring_script), *map(str, pipes), "--logging_level", settings.logging_level]
    with (folder / "logs" / f"process{number:03d}.txt").open("ab") as output:
        return subprocess.Popen(
            ends_with_parent([sys.executable, "-u", worker.__file__, *arguments], signal.SIGKILL),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | settings.environment_variables | own,
            cwd=folder / "code",
            start_new_session=True,
            pass_fds=pipes,
        )


class ScriptRunner:
    """The processes of a job, and the mini-batches that are left to do."""

    def __init__(self, job: AzureJob, deployment: Deployment) -> None:
        self.job, self.deployment, self.settings = job, deployment, deployment.settings
        size = self.settings.mini_batch_size or DEFAULT_MINI_BATCH
        files = [file.path for file in job.invocation.files]
        self.batches = [files[first : first + size] for first in range(0, len(files), size)]
        done = job.script_parts()
        self.pending = deque(number for number in range(len(self.batches)) if number not in done)
        self.failed_files = sum(done.values())
        self.tries: Counter[int] = Counter()
        self.processes: dict[int, ScriptProcess] = {}
        self.replies: Replies = queue.SimpleQueue()

    def run(self) -> None:
        """Score all that is pending."""
        self._check_threshold()
        while self.pending or any(process.batch is not None for process in self.processes.values()):
            if self.job.folder.is_cancelled:
                raise JobCancelled("The job was cancelled.")
            self._start_processes()
            for process in self.processes.values():
                if process.ready and process.batch is None and self.pending:
                    self._give(process, self.pending.popleft())
            with suppress(queue.Empty):
                self._take(*self.replies.get(timeout=TICK_SECONDS))
            for process in [each for each in self.processes.values() if each.is_late()]:
                self._take(process, None)

    def close(self) -> None:
        """Let the processes end by themselves."""
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self.processes.values():
            process.close()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, deadline - time.monotonic()) if process.ready else 0.0)

    def kill(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            process.kill()

    def _start_processes(self) -> None:
        working = sum(process.batch is not None for process in self.processes.values())
        wanted = min(self.settings.processes, working + len(self.pending))
        free = (number for number in range(self.settings.processes) if number not in self.processes)
        for number in [number for number, _ in zip(free, range(wanted - len(self.processes)), strict=False)]:
            self.processes[number] = ScriptProcess(number, self.job, self.deployment, self.replies)

    def _give(self, process: ScriptProcess, batch: int) -> None:
        rows = self.settings.output_action == "append_row"
        request = {"files": self.batches[batch], "path": str(self._temporary(batch)), "rows": rows}
        process.give(batch, request, self.settings.timeout)

    def _take(self, process: ScriptProcess, reply: dict[str, Any] | None) -> None:
        if self.processes.get(process.number) is not process:
            return  # it was killed
        if reply is None:
            del self.processes[process.number]
            how = process.kill()
            if not process.ready:
                raise _init_failed(how)
            if process.batch is not None:
                self._failed(process.batch, how)
        elif "ready" in reply:
            process.ready = True
        elif "init" in reply:
            log.error("init() failed:\n%s", reply["init"])
            raise _init_failed(reply["init"].rstrip().rpartition("\n")[2])
        elif "storage" in reply:
            raise StorageFull(f"A part can't be written: {reply['storage']}.", "Free some space, then resume the job.")
        elif "error" in reply:
            self._failed(process.done(), reply["error"])
        else:
            batch = process.done()
            self._publish(batch, max(0, len(self.batches[batch]) - reply["elements"]), reply["sha256"])

    def _failed(self, batch: int, reason: str) -> None:
        self.tries[batch] += 1
        most = 1 + self.settings.max_retries
        log.warning("Mini-batch %d, try %d of %d: %s", batch + 1, self.tries[batch], most, reason.rstrip())
        if self.tries[batch] < most:
            self.pending.appendleft(batch)
            return
        write_file(self._temporary(batch), lambda file: None)
        self._publish(batch, len(self.batches[batch]), hashlib.sha256().hexdigest())

    def _temporary(self, batch: int) -> Path:
        return temporary(self.job.folder.parts / f"{batch:06d}")

    def _publish(self, batch: int, failed: int, sha256: str) -> None:
        target = self.job.script_part(batch, failed)
        write_sum(target, sha256)
        with storage(target):
            self._temporary(batch).rename(target)
        log.info("Mini-batch %d of %d: done, %d files failed.", batch + 1, len(self.batches), failed)
        self.failed_files += failed
        self._check_threshold()

    def _check_threshold(self) -> None:
        threshold = self.settings.error_threshold
        if 0 <= threshold < self.failed_files:
            raise TooManyErrors(
                f"{self.failed_files} files failed, more than the error threshold of {threshold}.",
                f"See the log. `hfx batch job resume {self.job.name} --error-threshold N` goes on with a higher one.",
            )


def _init_failed(reason: str) -> UsageError:
    return UsageError(f"The scoring script failed at init(): {reason}.", "Correct it; the log has more.")
