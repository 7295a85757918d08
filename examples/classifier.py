"""A sentiment classifier, from checkpoint to a real Triton, asked by the command line and by the Python client."""

from __future__ import annotations

import statistics
import time

from examples.steps import Part, demonstrate, hfx
from hfx.client import Client
from tests import zoo

NAME = "sentiment"
SENTENCES = 8
CALLS = 200


def show(url: str) -> None:
    """Classify held-out sentences, then time single calls."""
    examples = zoo.heldout(NAME, SENTENCES)
    hfx("infer", NAME, examples[0].text, "--top-k", "2", "--url", url)
    with Client(url) as client:
        for example, result in zip(examples, client.classify(NAME, [e.text for e in examples]), strict=True):
            verdict = "right" if result.label == example.label else f"should be {example.label}"
            print(f"  {result.label:9} {result.score:.3f}  {verdict:18} {example.text}")
        latencies = []
        for example in zoo.heldout(NAME, CALLS):
            began = time.perf_counter()
            client.classify(NAME, example.text)
            latencies.append(1e3 * (time.perf_counter() - began))
    print(f"  latency of one sentence: median {statistics.median(latencies):.2f} ms over {CALLS} calls")


PART = Part("A classifier", NAME, "sentiment-distilbert", show)

if __name__ == "__main__":
    demonstrate([PART])
