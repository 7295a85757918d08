"""`python -m bench.gpu`: hfx's fp16 files on a GPU beside torch in fp16 on the same one. It needs onnxruntime-gpu.

As bench.generate and bench.encoder, in process; torch runs eagerly, and compiled with a static cache where that is
quick enough to wait for.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial

from bench import command
from bench.cases import Case, Texts, token_counter
from bench.command import Settings, Work, open_ways
from bench.encoder import SHAPE, case_name, session_figures
from bench.figures import Figures, take_turns
from bench.generate import COLUMNS, Cases
from bench.peers import Way
from bench.peers.transformers_api import COMPILED
from bench.scenarios import Turn
from hfx.perf.load import Closed

HFX, TORCH = Way("hfx", "fp16"), Way("torch", "fp16")
GPT2 = tuple((rows, 8, 50) for rows in (1, 8, 32, 128))
T5, BART = ((1, 64, 64), (16, 64, 64)), ((1, 768, 64), (8, 768, 64))
WIDTHS, SIZES = (16, 128), (1, 8, 64, 256)
ENCODER_COLUMNS = ("requests/s", "ms", "text to label ms")


def classifier(settings: Settings, figures: Figures) -> None:
    """A distilbert-base on so many texts of one length at once: the session, and from texts to labels."""
    checkpoint = SHAPE.checkpoint(settings.quick)
    count = token_counter(checkpoint)
    cases = [
        Case(case_name(width, size), Closed(size), Texts(lengths=f"fixed:{width}"), size)
        for width in WIDTHS
        for size in SIZES
    ]
    loads = {case.name: (case, case.request_set(count)) for case in cases}
    with ExitStack() as stack:
        children = open_ways(settings.chosen((HFX, TORCH)), checkpoint, figures, stack)
        ways: dict[str, Turn] = {label: partial(session_figures, child) for label, child in children.items()}
        take_turns(figures, "classifier", loads, ways, settings.turns(5))


def _work(title: str, cases: Cases) -> Work:
    return Work(title, cases.measure, COLUMNS, (HFX.label,), "ms")


WORKS = {
    "gpt2": _work(
        "distilgpt2, greedy, on a GPU", Cases("distilgpt2", GPT2, (HFX, TORCH, Way("torch", "fp16", COMPILED)))
    ),
    "t5": _work("flan-t5-base, greedy, on a GPU", Cases("flan-t5-base", T5, (HFX, TORCH))),
    "bart": _work(
        "bart-large-cnn, 4 beams, on a GPU", Cases("bart-large-cnn", BART, (HFX, TORCH), beams=4, ngram=3, rounds=4)
    ),
    "classifier": Work("distilbert-base on a GPU", classifier, ENCODER_COLUMNS, (HFX.label,), "ms"),
}

if __name__ == "__main__":
    sys.exit(command.run("gpu", WORKS))
