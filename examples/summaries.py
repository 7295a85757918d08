"""An encoder-decoder that summarizes: one text, JSON lines with settings of their own, and a list of texts."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from examples.steps import Part, demonstrate, hfx
from hfx.client import Client
from tests import zoo

NAME = "summaries"
TEXTS = 64


def show(url: str) -> None:
    """Summarize held-out texts by the command line and by the Python client, and compare with what they are about."""
    examples = zoo.heldout(NAME, TEXTS)
    texts = [example.prompt + example.continuation for example in examples]
    hfx("infer", NAME, texts[0], "--num-beams", "4", "--url", url)
    _json_lines(texts[:3], url)
    with Client(url) as client:
        began = time.perf_counter()
        summaries = client.summarize(NAME, texts)
        seconds = time.perf_counter() - began
    right = sum(found.text.strip() == example.summary for found, example in zip(summaries, examples, strict=True))
    tokens = sum(found.output_tokens for found in summaries)
    print(f"  {TEXTS} texts by the Python client: {seconds:.2f} s, {tokens / seconds:.0f} tokens/s, {right} right")


def _json_lines(texts: list[str], url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="hfx-demo-") as folder:
        file = Path(folder) / "texts.jsonl"
        rows = [{"id": beams, "text_input": text, "num_beams": beams} for beams, text in enumerate(texts, 1)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        hfx("infer", NAME, "--jsonl", "--input", str(file), "--max-tokens", "40", "--url", url)


PART = Part("A model that summarizes", NAME, "summaries-bart", show)

if __name__ == "__main__":
    demonstrate([PART])
