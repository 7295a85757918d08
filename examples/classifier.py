"""A sentiment classifier from checkpoint to a real Triton: what `make demo` runs.

Trains a small checkpoint (once; it is cached), exports it with the command line that users type, serves it with the
embedded Triton, and asks it through the Python client. Everything printed was measured in this run.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hfx.client import Client
from hfx.triton import EmbeddedServer
from tests import zoo

NAME = "sentiment"
SENTENCES = 8
CALLS = 200


def main() -> None:
    """Train, export, serve, ask, stop."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hfx-demo-") as folder:
        repository = Path(folder) / "model_repository"
        say("1. A trained checkpoint")
        checkpoint = zoo.checkpoint("sentiment-distilbert")
        say("2. hfx export")
        run("hfx", "export", str(checkpoint), "--name", NAME, "--quantize", "--repository", str(repository))
        say("3. hfx list")
        run("hfx", "list", str(repository))
        say("4. A real Triton, asked by the Python client")
        with EmbeddedServer(repository) as server, Client(server.grpc_url) as client:
            ask(client)
        say(f"Stopped the server. {time.perf_counter() - begin:.0f} s in all.")


def ask(client: Client) -> None:
    """Classify held-out sentences, then time single calls."""
    examples = zoo.heldout("sentiment", SENTENCES)
    for example, result in zip(examples, client.classify(NAME, [e.text for e in examples]), strict=True):
        verdict = "right" if result.label == example.label else f"should be {example.label}"
        print(f"  {result.label:9} {result.score:.3f}  {verdict:18} {example.text}")
    latencies = []
    for example in zoo.heldout("sentiment", CALLS):
        start = time.perf_counter()
        client.classify(NAME, example.text)
        latencies.append(1e3 * (time.perf_counter() - start))
    print(f"  latency of one sentence: median {statistics.median(latencies):.2f} ms over {CALLS} calls")


def run(*command: str) -> None:
    """Run a command of this environment; its output is the demo's."""
    print("  $", " ".join(Path(word).name if word.startswith("/") else word for word in command), flush=True)
    executable = shutil.which(command[0], path=str(Path(sys.executable).parent))
    code = subprocess.run([executable or command[0], *command[1:]]).returncode
    if code:
        raise SystemExit(code)  # the command has said why


def say(text: str) -> None:
    """A headline."""
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    main()
