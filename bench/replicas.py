"""`python -m bench.replicas`: the memory of a second container with the same models, which are mounted read-only.

It needs a docker engine with hfx's image (docs/serving.md, In containers), and root, which sees other users' memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil

from bench.cases import Served
from bench.command import Settings, Work, run
from bench.figures import Figures, Goal
from bench.peers.processes import free_ports
from bench.start import CLASSIFIER, FIRST_TOKEN, HOST, LONGEST, NAME, PAUSE, SUMMARIZER, TEXT, answers
from hfx.errors import ServerError
from hfx.releases import MINIMUM_SECURE, release

IMAGE = release(MINIMUM_SECURE).hfx_image("cpu")
COLUMNS = ("first MiB", "second MiB", "share")
SETTLED = 2.0  # seconds after the first answer
SHARED = "shared weights"  # HFX_HUGE_PAGES=0


def measure(settings: Settings, figures: Figures, served: Served, path: str, body: dict[str, object]) -> None:
    """The proportional set size of all processes of one container, and what a second one adds."""
    data = json.dumps(body).encode()
    with tempfile.TemporaryDirectory(prefix="hfx-replicas-") as folder:
        models = Path(folder) / "models"
        shutil.copytree(served.repository("int8", settings.quick), models)
        for place in (Path(folder), models, *models.rglob("*")):
            place.chmod(0o755 if place.is_dir() else 0o644)
        for turn in range(settings.turns(3)):
            for way, pages in (("hfx int8", "1"), (SHARED, "0")):
                with ExitStack() as stack:
                    first = stack.enter_context(container(models, pages, path, data))
                    one = memory(first)
                    second = stack.enter_context(container(models, pages, path, data))
                    more = memory(first) + memory(second) - one
                figures.add(way, served.shape, turn, first_MiB=one, second_MiB=more, share=more / one)


@contextmanager
def container(models: Path, pages: str, path: str, body: bytes) -> Iterator[str]:
    """The name of a container that has answered once. Raises ServerError."""
    (port,) = free_ports(1)
    name = f"hfx-replica-{port}"
    settings = {"HFX_INSECURE": "1", "HFX_ALLOWED_HOST": HOST, "HFX_HUGE_PAGES": pages}
    words = ["--name", name, "--init", "--shm-size", "1g", "--volume", f"{models}:/models:ro"]
    words += ["--publish", f"{HOST}:{port}:8000", *(f"--env={key}={value}" for key, value in settings.items())]
    _docker("run", "--detach", "--rm", *words, IMAGE)
    try:
        began = time.perf_counter()
        while not answers(f"http://{HOST}:{port}{path}", body):
            if time.perf_counter() - began > LONGEST:
                raise ServerError("The container did not answer.", _docker("logs", name)[-1000:])
            time.sleep(PAUSE)
        time.sleep(SETTLED)
        yield name
    finally:
        _docker("stop", "--time", "3", name)


def memory(name: str) -> float:
    """The proportional set size of a container's processes, in MiB."""
    pids = map(int, _docker("top", name, "-eo", "pid").split()[1:])
    return float(sum(psutil.Process(pid).memory_full_info().pss for pid in pids)) / (1 << 20)


def _docker(*words: str) -> str:
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        raise ServerError(
            f"docker {words[0]} failed: {said[-300:]}.", "Start the engine, and build the image."
        ) from error
    return done.stdout


WORKS = {
    "classifier": Work(
        "Two containers of a classifier of distilbert-base's size in int8",
        partial(measure, served=CLASSIFIER, path=f"/models/{NAME}", body={"inputs": TEXT}),
        COLUMNS,
        goals=(Goal("distilbert-base", "share", (SHARED,), most=0.35),),
    ),
    "summarizer": Work(
        "Two containers of BART-large in int8 on native operators",
        partial(measure, served=SUMMARIZER, path="/v1/completions", body=FIRST_TOKEN),
        COLUMNS,
        goals=(Goal("bart-large-cnn", "share", (SHARED,), most=0.35),),
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(run("replicas", WORKS))
