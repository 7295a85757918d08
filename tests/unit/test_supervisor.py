"""The pace of restarts."""

from __future__ import annotations

from hfx.triton import supervisor


def test_the_first_restart_comes_at_once_and_each_further_one_later_up_to_a_bound() -> None:
    assert supervisor._pause(0) == 0
    for restarts in range(1, 60):
        most = min(2.0 ** (restarts - 1), supervisor.MAX_PAUSE_SECONDS)
        assert all(most / 2 <= supervisor._pause(restarts) <= most for _ in range(20))


def test_servers_that_died_together_do_not_restart_together() -> None:
    assert len({supervisor._pause(3) for _ in range(20)}) > 10
