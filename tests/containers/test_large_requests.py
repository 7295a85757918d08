"""Large requests, as many as the front accepts, do not exhaust a container's memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.containers.containers import answers, running
from tests.rigs.servers.serve_process import post

pytestmark = pytest.mark.container

MIB = 1 << 20
FILES = "/sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control"  # of versions 2 and 1
OOM_KILLS = f"grep -h '^oom_kill ' {FILES} 2>/dev/null; true"


@pytest.mark.parametrize("options", [[], ["--memory", "900m"]], ids=["memory of run.sh", "900 MiB"])
def test_large_requests_are_answered_or_refused_and_nothing_is_killed(options: list[str], both: Path) -> None:
    """900 MiB are too little for all bodies that the front would accept without regard to its memory."""
    body = {"text_input": "a " * (15 * MIB // 2), "max_tokens": 4}

    def ask(_: int) -> int:
        try:
            return post(f"{container.http_url}/v2/models/stories/generate", body)[0]
        except OSError:  # refused before the body was read
            return 503

    with running("./both/run.sh", both, *options) as container:
        with ThreadPoolExecutor(16) as pool:
            codes = list(pool.map(ask, range(48)))
        # 400: more tokens than the model takes; 408: a body that came too slowly, as on busy processors
        assert 400 in codes and set(codes) <= {400, 408, 503}, codes
        assert container.running.poll() is None and not container.state(".State.OOMKilled")
        assert container.exec("sh", "-c", OOM_KILLS).split() == ["oom_kill", "0"], container.log
        assert "serving again" not in container.log and "starting another" not in container.log
        answers(container)
