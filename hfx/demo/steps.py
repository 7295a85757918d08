"""The steps of the demo, with hfx's ordinary commands and client; each command is printed before it is run."""

from __future__ import annotations

import csv
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hfx.client import Client
from hfx.demo import checkpoints
from hfx.errors import HfxError

CLASSIFIER, GENERATOR = "reviews", "stories"
HELDOUT = 200  # reviews that the classifier has not seen
CALLS = 200
STOPPING = 60.0  # seconds in which a server must stop after SIGTERM
FREE = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
HFX = [sys.executable, "-c", "import sys; from hfx.cli import main; sys.exit(main())"]


@dataclass(frozen=True)
class Demo:
    """The demo in `folder`; `say` prints a line, `counted` shows a progress bar, and the commands print to `output`."""

    folder: Path
    say: Callable[[str], None]
    counted: checkpoints.Counted
    output: IO[str]

    def run(self) -> dict[str, Any]:
        """Train, export, serve and query a classifier, then a generator; return the figures.

        Raises HfxError if a command fails.
        """
        began = time.perf_counter()
        self.say("1. Train a small classifier in transformers' format: ten seconds on an idle core.")
        self._trained(checkpoints.write_classifier, "reviews-roberta")
        self._write_heldout()
        self.say("\n2. Export it to a Triton model, and verify it against the checkpoint: about half a minute.")
        data = ["--quantize", "--verify-data", "heldout.csv"]
        self._hfx("export", "reviews-roberta", "--name", CLASSIFIER, "--device", "cpu", *data)
        self.say("\n3. Serve it with a real Triton.")
        with self._served() as url:
            self.say("\n4. Query it, from the command line and from Python:")
            classified = self._classify(url)
            self.say("\n5. Train a generator, export it, and load it into the running server: about a minute.")
            self._trained(checkpoints.write_generator, "stories-gpt2")
            self._hfx("export", "stories-gpt2", "--name", GENERATOR, "--device", "cpu")
            self._hfx("list")
            self._hfx("reload", GENERATOR)
            self.say("\n6. Stream from it:")
            generated = self._generate(url)
        seconds = time.perf_counter() - began
        self.say(f"\nDone in {seconds:.0f} s; the server is stopped.")
        return {"seconds": round(seconds, 1), CLASSIFIER: classified, GENERATOR: generated}

    def _trained(self, write: Callable[[Path, checkpoints.Counted], None], name: str) -> None:
        began = time.perf_counter()
        write(self.folder / name, self.counted)
        self.say(f"  {name}: {time.perf_counter() - began:.0f} s")

    def _write_heldout(self) -> None:
        with (self.folder / "heldout.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *checkpoints.reviews(HELDOUT, seed=1)])

    def _classify(self, url: str) -> dict[str, Any]:
        examples = checkpoints.reviews(CALLS, seed=2)
        self._hfx("infer", CLASSIFIER, *(text for text, _ in examples[:3]), "--url", url)
        latencies, right = [], 0
        with Client(url) as client:
            for text, label in examples:
                began = time.perf_counter()
                right += client.classify(CLASSIFIER, text).label == label
                latencies.append(1e3 * (time.perf_counter() - began))
        median = statistics.median(latencies)
        self.say(f"  {CALLS} calls from Python: {right} correct, median latency {median:.2f} ms")
        return {"calls": CALLS, "right": right, "median_ms": round(median, 3)}

    def _generate(self, url: str) -> dict[str, Any]:
        settings = ["--temperature", "0.7", "--seed", "7"]
        self._hfx("infer", GENERATOR, "Anna went to Oslo.", "--stream", *settings, "--url", url)
        times: list[float] = []
        with Client(url) as client:
            began = time.perf_counter()
            with client.stream(GENERATOR, "Clara went to Lima.", temperature=0.7, seed=7) as pieces:
                for _ in pieces:
                    times.append(time.perf_counter() - began)
            tokens = pieces.result.output_tokens
        self.say(f"  from Python: first piece after {1e3 * times[0]:.1f} ms, {tokens / times[-1]:.0f} tokens/s")
        return {"output_tokens": tokens, "first_ms": round(1e3 * times[0], 3), "seconds": round(times[-1], 4)}

    def _hfx(self, *words: str) -> None:
        """Run a command. Raises HfxError with its exit code if it fails."""
        self._echo(words)
        code = subprocess.run([*HFX, *words], cwd=self.folder, stdout=self.output).returncode
        if code:
            raise _failed(words[0], code)

    @contextmanager
    def _served(self) -> Iterator[str]:
        """Run `hfx serve` on free ports, and yield the address of its gRPC port."""
        words = ["serve", *FREE, "--json"]
        self._echo(words)
        server = subprocess.Popen([*HFX, *words], cwd=self.folder, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            ready = json.loads(server.stdout.readline() or "{}")
            if "grpc_url" not in ready:
                raise _failed("serve", server.wait(STOPPING))
            self.say(f"  serves {', '.join(ready['models'])} on {ready['http_url']} and {ready['grpc_url']} (gRPC)")
            yield ready["grpc_url"]
        finally:
            server.terminate()
            server.wait(STOPPING)

    def _echo(self, words: list[str] | tuple[str, ...]) -> None:
        self.say(f"  $ hfx {shlex.join(words)}")


def _failed(command: str, code: int) -> HfxError:
    error = HfxError(f"`hfx {command}` of the demo ended with exit code {code}.", "Its message is above.")
    error.exit_code = code or 1
    return error
