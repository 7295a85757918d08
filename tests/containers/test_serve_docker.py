"""`hfx serve --with docker`: a front and a supervisor outside, Triton in a container."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.containers.containers import recites
from tests.containers.images import run
from tests.rigs.servers.serve_process import serving

pytestmark = pytest.mark.container


def test_a_killed_container_is_replaced_and_removed_at_the_end(image: str, folder: Path) -> None:
    # Its encoder's net needs NVIDIA's onnxruntime backend, which the image of these tests has not.
    with serving(folder / "model_repository", "--with", "docker", "--models", "stories") as served:
        served.grpc_url = served.ready["grpc_url"]  # type: ignore[attr-defined]
        recites(served)
        [container] = run("docker", "ps", "--quiet", "--filter", "name=^hfx-[0-9a-f]{8}$").split()
        run("docker", "kill", container)
        served.wait_for_words("serving again")
        recites(served)
        served.running.send_signal(signal.SIGTERM)
        assert served.end() == 0 and "no accepted request was lost" in served.words
    assert not run("docker", "ps", "--all", "--quiet", "--filter", "name=^hfx-[0-9a-f]{8}$")
