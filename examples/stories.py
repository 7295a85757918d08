"""A decoder that goes on with a story, streamed to the terminal and to a Python program."""

from __future__ import annotations

import time

from examples.steps import Part, demonstrate, hfx
from hfx.client import Client
from tests import zoo

NAME = "stories"
TOKENS = 60


def show(url: str) -> None:
    """Stream a story twice, by the command line and by the Python client: the same seed gives the same text."""
    beginning = zoo.heldout(NAME, 1)[0].prompt.partition(".")[0] + "."
    settings = ["--max-tokens", str(TOKENS), "--temperature", "0.8", "--seed", "7"]
    hfx("infer", NAME, beginning, "--stream", *settings, "--url", url)
    with Client(url) as client:
        began, times = time.perf_counter(), []
        with client.stream(NAME, beginning, max_tokens=TOKENS, temperature=0.8, seed=7) as pieces:
            for piece in pieces:
                times.append(time.perf_counter() - began)
                print(piece.text, end="", flush=True)
        result = pieces.result
    print(
        f"\n  {len(times)} pieces, the first after {1e3 * times[0]:.1f} ms, "
        f"{result.output_tokens / times[-1]:.0f} tokens/s, ended by {result.finish_reason}"
    )


# 7-bit weights, which processors without VNNI need, change 1.1 % of its tokens; 1 % may be without the option.
PART = Part("A model that writes, as it writes", NAME, "stories-gpt2", show, ("--max-drop", "0.02"))

if __name__ == "__main__":
    demonstrate([PART])
