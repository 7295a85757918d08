"""`python -m bench.start`: from `hfx serve` typed to the first answer over HTTP, and the memory of all its processes.

Files are in the page cache, and Python's bytecode on disk, after the first start, whose figures are thrown away.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import psutil

from bench.cases import Served
from bench.command import Settings, Work, run
from bench.exports import NAME
from bench.figures import Figures, Goal, say
from hfx.errors import ServerError
from hfx.process import end
from hfx.triton.server import Ports, choose_ports

HFX = str(Path(sys.executable).with_name("hfx"))
HOST = "127.0.0.1"
CLASSIFIER, SUMMARIZER = Served("distilbert-base"), Served("bart-large-cnn")
LONGEST, PAUSE = 120.0, 0.01  # seconds
COLUMNS = ("seconds", "processes", "PSS MiB")


def measure(settings: Settings, figures: Figures, served: Served, path: str, body: dict[str, object]) -> None:
    """Figures of a server of its own in each round."""
    repository = served.repository("int8", settings.quick)
    for turn in range(-1, settings.turns(5)):
        say(f"starting a server of {served.shape}")
        found = _start(repository, path, json.dumps(body).encode())
        if turn >= 0:
            figures.add("hfx int8", served.shape, turn, **found)


def _start(repository: Path, path: str, body: bytes) -> dict[str, float]:
    ports = choose_ports(Ports(0, 0, 0), HOST)
    options = ["--host", HOST, "--http-port", f"{ports.http}", "--grpc-port", f"{ports.grpc}"]
    command = [HFX, "serve", str(repository), *options, "--metrics-port", f"{ports.metrics}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            while not answers(f"http://{HOST}:{ports.http}{path}", body):
                if process.poll() is not None or time.perf_counter() - began > LONGEST:
                    log.seek(0)
                    raise ServerError("The server did not answer.", log.read()[-1000:].decode(errors="replace"))
                time.sleep(PAUSE)
            seconds = time.perf_counter() - began
            root = psutil.Process(process.pid)
            pss = [each.memory_full_info().pss for each in (root, *root.children(recursive=True))]
        finally:
            end(process, 10.0)
    return {"seconds": seconds, "processes": len(pss), "PSS MiB": sum(pss) / (1 << 20)}


def answers(url: str, body: bytes) -> bool:
    """Whether a server answers the request. Raises ServerError if it refuses it."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LONGEST) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        if error.code not in (404, 503):  # 404: the model is not loaded yet
            raise ServerError(f"The request is refused: {error.read()[:500]!r}", "Look at its answer.") from error
    except OSError:
        pass
    return False


TEXT = "The garden behind the house was lovely in the morning."
FIRST_TOKEN = {"model": NAME, "prompt": TEXT, "max_tokens": 1}
WORKS = {
    "classifier": Work(
        "A classifier of distilbert-base's size in int8, one text",
        partial(measure, served=CLASSIFIER, path=f"/models/{NAME}", body={"inputs": TEXT}),
        COLUMNS,
        goals=(Goal("distilbert-base", "seconds", ("hfx int8",), most=1.5),),
    ),
    "summarizer": Work(
        "BART-large in int8 on native operators, the first token",
        partial(measure, served=SUMMARIZER, path="/v1/completions", body=FIRST_TOKEN),
        COLUMNS,
        goals=(Goal("bart-large-cnn", "seconds", ("hfx int8",), most=3.0),),
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(run("start", WORKS))
