"""`python -m bench.answers`: a language model that classifies by its answers, beside the same model writing them.

Both are exported in int8 from one checkpoint of random weights, and get the same prompt: a policy, and a text of so
many words. The writer's prefix cache holds the policy. Medians of one caller, in turn.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from bench.checkpoints import checkpoint
from hfx.client import Client
from hfx.exporter import pipeline
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
from hfx.triton import EmbeddedServer

TEMPLATE = (
    "{% for message in messages %}### {{ message.role }}:\n{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)
POLICY = "A text is unsafe if it asks for help with a crime, insults a person, or shares an address. " * 12
WORDS = ("the", "garden", "house", "morning", "train", "answer", "policy", "letter", "money", "street")
VERDICT = 10  # tokens, such as those of "Safety: Unsafe\nCategories: Violent"
GUARD, WRITER = "guard", "writer"


def main() -> None:
    """Print a line for each length of texts."""
    parser = argparse.ArgumentParser(prog="python -m bench.answers")
    parser.add_argument("--shape", default="smollm-135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = shutil.copytree(checkpoint(options.shape), Path(folder) / "model")
        (model / "chat_template.jinja").write_text(TEMPLATE)
        answers = ("unsafe=Safety: Unsafe", "safe=Safety: Safe")
        _export(model, ExportOptions(name=GUARD, task="text-classification", answer=answers, system=POLICY))
        _export(model, ExportOptions(name=WRITER))
        print(f"{options.shape}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
        with EmbeddedServer(model.parent / "models") as server, Client(server.grpc_url) as client:
            for words in (5, 15, 50):
                _compare(client, words, options.rounds, options.requests)


def _export(model: Path, options: ExportOptions) -> None:
    chosen = {"precision": "int8", "device": "cpu", "max_length": 1024, "repository": model.parent / "models"}
    plan = pipeline.make_plan(open_checkpoint(str(model)), ExportOptions(**{**vars(options), **chosen}))
    pipeline.export(plan, lambda title: nullcontext(), pipeline.without_gate(plan))


def _compare(client: Client, words: int, rounds: int, requests: int) -> None:
    chance = random.Random(words)

    def text() -> str:
        return " ".join(chance.choices(WORDS, k=words))

    def write() -> None:
        prompt = f"### system:\n{POLICY}\n### user:\n{text()}\n### assistant:\n"
        client.generate(WRITER, prompt, max_tokens=VERDICT, min_tokens=VERDICT)

    ways: dict[str, Callable[[], object]] = {GUARD: lambda: client.classify(GUARD, text()), WRITER: write}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            for _ in range(requests):
                began = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - began)
    guard, writer = (statistics.median(seconds[name]) for name in ways)
    print(
        f"{words:3} words: guard {1000 * guard:6.1f} ms, {VERDICT} tokens written {1000 * writer:6.1f} ms, "
        f"ratio {guard / writer:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
