"""Every chunk belongs to exactly one shard, and invalid shard notation is refused."""

from __future__ import annotations

import pytest

from hfx.batch.plan import Shard, parse_shard
from hfx.errors import UsageError

LAUNCHED = [
    {"RANK": "2", "WORLD_SIZE": "8"},
    {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
    {"SLURM_PROCID": "2", "SLURM_NTASKS": "8"},
    {"PMI_RANK": "2", "PMI_SIZE": "8"},
    {"JOB_COMPLETION_INDEX": "2", "JOB_COMPLETIONS": "8"},
    {"RANK": "2", "WORLD_SIZE": "8", "PMI_RANK": "2", "PMI_SIZE": "8", "SLURM_NTASKS": "4"},  # salloc: no PROCID
]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("total", [0, 1, 5, 64, 1000])
def test_every_chunk_has_one_shard_and_shards_differ_by_one_chunk(count: int, total: int) -> None:
    ranges = [Shard(index, count).chunks(total) for index in range(count)]
    assert [chunk for chunks in ranges for chunk in chunks] == list(range(total))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize("first", [0, 1])
def test_shards_on_the_command_line_count_from_zero_or_one(first: int) -> None:
    shards = {parse_shard(f"{place}/3", {}) for place in range(first, first + 3)}
    assert shards == {Shard(0, 3), Shard(1, 3), Shard(2, 3)}
    assert {str(shard) for shard in shards} == {"0/3", "1/3", "2/3"}


def test_a_job_has_from_one_to_a_million_shards() -> None:
    assert parse_shard("1/1", {}) == Shard(0, 1)
    assert parse_shard("1/1000000", {}) == Shard(1, 1_000_000)
    assert parse_shard("env", {"RANK": "1", "WORLD_SIZE": "1000000"}) == Shard(1, 1_000_000)
    for text, environment in (("1/1000001", {}), ("0/0", {}), ("env", {"RANK": "1", "WORLD_SIZE": "1000001"})):
        with pytest.raises(UsageError):
            parse_shard(text, environment)


def test_a_single_process_has_the_whole_job_unless_it_is_a_task_of_an_array() -> None:
    assert parse_shard("env", {"RANK": "0", "WORLD_SIZE": "1"}) == Shard(0, 1)
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert parse_shard("env", {**slurm, "SLURM_ARRAY_TASK_COUNT": "1"}) == Shard(0, 1)
    assert parse_shard("env", {**slurm, "SLURM_NTASKS": "2", "SLURM_ARRAY_TASK_COUNT": "4"}) == Shard(0, 2)


@pytest.mark.parametrize(
    "text", ["4/3", "1/0", "-1/3", "1", "/3", "1/", "1/3/5", "1.0/3", "", "ENV", "١/٣", "1/9999999"]
)
def test_invalid_shard_notation_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--shard"):
        parse_shard(text, {})


@pytest.mark.parametrize("environment", LAUNCHED, ids=lambda environment: next(iter(environment)))
def test_a_launchers_rank_counts_from_zero(environment: dict[str, str]) -> None:
    assert parse_shard("env", environment) == Shard(2, 8)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "no launcher's variables"),
        ({"WORLD_SIZE": "8"}, "no launcher's variables"),
        ({"RANK": "2"}, "WORLD_SIZE is not"),
        ({"JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETIONS is not"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "RANK=8"),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, "RANK=-1"),
        ({"RANK": "two", "WORLD_SIZE": "8"}, "RANK=two"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ({"RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "contradict"),
        ({"RANK": "0", "WORLD_SIZE": "1", "PMI_RANK": "0", "PMI_SIZE": "8"}, "contradict"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_ARRAY_TASK_COUNT": "4"}, "Slurm array"),
    ],
)
def test_variables_that_do_not_say_one_shard_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_shard("env", environment)
