"""Shards: which chunks of a plan one of several processes scores.

A shard is a range of consecutive chunks and nothing else: shards share no state, and a chunk that two processes score
has the same bytes from both. `--shard I/N` counts from 1, as GNU split, jest and cargo-nextest count, or from 0, as the
ranks of launchers do: 0/N and N/N are one and the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hfx.errors import UsageError

# The variables of a process's rank and of the number of processes: torchrun and Azure ML, Open MPI, Slurm, MPICH and
# Intel MPI, Kubernetes. An indexed job of Kubernetes has no variable for its completions: the manifest sets it.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),
)
SLURM_ARRAY = "SLURM_ARRAY_TASK_COUNT"
HELP = "I/N scores the I-th of N equal ranges of the chunks (0/N is N/N); `env` takes both from a launcher's variables."
MAX_SHARDS = 1_000_000


@dataclass(frozen=True)
class Shard:
    """One of `count` shards; `index` is from 0 to `count` - 1. As text: "0/3" to "2/3"."""

    index: int
    count: int

    def chunks(self, total: int) -> range:
        """The places of this shard's chunks among `total`; shards differ by at most one chunk, and may be empty."""
        return range(self.index * total // self.count, (self.index + 1) * total // self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse(text: str, environment: Mapping[str, str] = os.environ) -> Shard:
    """The shard of "I/N" with I from 0 or 1 to N, or of "env": a launcher's variables. Raises UsageError."""
    if text == "env":
        return _launched(environment)
    if not (match := re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)):
        raise UsageError(f"{text!r} is no shard.", "Give I/N, e.g. --shard 1/8 to --shard 8/8, or --shard env.")
    place, count = map(int, match.groups())
    if not (place <= count and 1 <= count <= MAX_SHARDS):
        raise UsageError(
            f"There is no shard {text}.", f"Give --shard I/N, I from 1 to N, and N at most {MAX_SHARDS:,}."
        )
    return Shard(place % count, count)


def _launched(environment: Mapping[str, str]) -> Shard:
    found = {names: _pair(environment, *names) for names in LAUNCHERS if environment.get(names[0])}
    if not found:
        raise UsageError(
            "--shard env found no launcher's variables.",
            f"Start it by a launcher that sets {', '.join(' and '.join(names) for names in LAUNCHERS)}; or give I/N.",
        )
    if len(set(found.values())) > 1:
        variables = ", ".join(f"{rank}={environment[rank]} {size}={environment[size]}" for rank, size in found)
        raise UsageError(
            f"The launchers' variables contradict each other: {variables}.",
            "Unset those that do not count (e.g. env -u SLURM_PROCID), or give --shard I/N.",
        )
    shard = next(iter(found.values()))
    if shard.count == 1 and environment.get(SLURM_ARRAY, "1") != "1":
        raise UsageError(
            f"A task of a Slurm array is rank 0 of 1, but the array has {environment[SLURM_ARRAY]} tasks.",
            'With --array=1-N, give --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT".',
        )
    return shard


def _pair(environment: Mapping[str, str], rank: str, size: str) -> Shard:
    if not environment.get(size):
        raise UsageError(f"{rank} is set, but {size} is not.", f"Set {size} to the number of processes, or give I/N.")
    texts = environment[rank], environment[size]
    if not all(re.fullmatch("[0-9]{1,9}", text) for text in texts) or not int(texts[0]) < int(texts[1]) <= MAX_SHARDS:
        raise UsageError(
            f"{rank}={texts[0]} and {size}={texts[1]} are no rank and number of processes.",
            f"{rank} counts from 0 to {size} - 1, and {size} is at most {MAX_SHARDS:,}.",
        )
    return Shard(int(texts[0]), int(texts[1]))
