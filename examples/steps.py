"""The steps of a demo: trained checkpoints are exported, listed and served by the commands that users type.

A part says what is exported and what is asked of the server. Everything printed was measured in this run.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import zoo

STOPPING = 60.0  # seconds until a server that was told to stop must have
FREE = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]


@dataclass(frozen=True)
class Part:
    """A published model, the trained checkpoint that it is made of, and what a demo of it does with a server's URL.

    `options` are more words of its `hfx export`.
    """

    title: str
    name: str
    checkpoint: str
    show: Callable[[str], None]
    options: tuple[str, ...] = ()


def demonstrate(parts: Sequence[Part]) -> None:
    """Train, export, list, serve, ask, stop."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hfx-demo-") as folder:
        repository = Path(folder) / "model_repository"
        say("Trained checkpoints (made once, then cached)")
        checkpoints = [zoo.checkpoint(part.checkpoint) for part in parts]
        for part, checkpoint in zip(parts, checkpoints, strict=True):
            print(f"  {part.name:10} {checkpoint.name}")
        say("From checkpoint to model repository")
        for part, checkpoint in zip(parts, checkpoints, strict=True):
            words = ["--name", part.name, "--quantize", "--device", "cpu", "--repository", str(repository)]
            hfx("export", str(checkpoint), *words, *part.options)
        hfx("list", str(repository))
        say("A real Triton")
        with _served(repository) as url:
            for part in parts:
                say(part.title)
                part.show(url)
    say(f"Stopped the server. {time.perf_counter() - began:.0f} s in all.")


def hfx(*words: str) -> None:
    """Run `hfx WORDS`; its output is the demo's."""
    _echo(words)
    code = subprocess.run([_program(), *words]).returncode
    if code:
        raise SystemExit(code)  # the command has said why


def say(text: str) -> None:
    """A headline."""
    print(f"\n{text}", flush=True)


@contextmanager
def _served(repository: Path) -> Iterator[str]:
    """`hfx serve` on free ports; yields the address of its gRPC port."""
    words = ["serve", str(repository), *FREE, "--json"]
    _echo(words)
    server = subprocess.Popen([_program(), *words], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        ready = json.loads(server.stdout.readline() or "{}")
        if "grpc_url" not in ready:
            raise SystemExit(server.wait(STOPPING) or 1)
        print(f"  serves {', '.join(ready['models'])} at {ready['grpc_url']} and {ready['http_url']}")
        yield ready["grpc_url"]
    finally:
        server.terminate()
        server.wait(STOPPING)


def _program() -> str:
    """The `hfx` of this environment."""
    return shutil.which("hfx", path=str(Path(sys.executable).parent)) or "hfx"


def _echo(words: Sequence[str]) -> None:
    shown = (Path(word).name if word.startswith("/") else shlex.quote(word) for word in words)
    print("  $ hfx", " ".join(shown), flush=True)
