"""`python -m bench.gpu`: hfx's fp16 files on a GPU, beside the CPU and torch. It needs onnxruntime-gpu.

`served` puts loads on a Triton for the GPU, in turn with one for the CPU of the same machine. The other works run in
process, as in bench.generate and bench.encoder. torch runs eagerly, compiled (generators with a static cache), and with
its SDPA by name. `--device cpu --quick` runs everything on tiny models and the CPU, to find mistakes before a GPU is
used. The rounds of all runs are kept in bench/results/gpu.jsonl, by GPU and date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import command
from bench.cases import TIMEOUT, Case, Served, Texts, callers, token_counter
from bench.client import run_figures
from bench.command import Settings, Work, open_ways
from bench.encoder import SHAPE, case_name, session_figures
from bench.exports import BOTH, NAME
from bench.figures import Figures, gpu_facts, noted, take_turns
from bench.generate import COLUMNS, Cases
from bench.peers import Way
from bench.peers.hfx_engine import TENSORRT
from bench.peers.transformers_api import COMPILED, SDPA
from bench.scenarios import Turn
from hfx.names import MAX_TOKENS, MIN_TOKENS
from hfx.perf.load import Closed, LoadLimits, parse_lengths, synthetic
from hfx.perf.measuring import MeasureSpec, Target, measure, server_target
from hfx.perf.report.figures import FIGURES
from hfx.triton import EmbeddedServer
from hfx.triton.one_hop import Steps

RESULTS = Path("bench/results/gpu.jsonl")
PRECISIONS = {"gpu": "fp16", "cpu": "fp32"}  # of the ways in process
GPT2 = tuple((rows, 8, 50) for rows in (1, 8, 32, 128))
T5, BART = ((1, 64, 64), (16, 64, 64)), ((1, 768, 64), (8, 768, 64))
WIDTHS, SIZES = (16, 128), (1, 8, 64, 256)
ENCODER_COLUMNS = ("requests/s", "ms", "text to label ms")
BUSY, MEMORY, CAPTURED = "GPU busy %", "GPU GB", "steps captured %"
SERVED_COLUMNS = (
    "requests/s", "tokens/s", "p50 ms", "p99 ms", "first token p50 ms", "rows a step", BUSY, MEMORY, CAPTURED,
)  # fmt: skip
ON_GPU, BY_PYTHON, ON_CPU = "fp16 on the GPU", "fp16 on the GPU, Python steps", "int8 on the CPU"
SECONDS, WARM_SECONDS, MOST_TEXTS = 3.0, 1.0, 512


@dataclass(frozen=True)
class Load:
    """Texts of `words` words to a served model, by so many `callers` at a time.

    `new` tokens are written; 0: as many as the checkpoint's own settings say, or a classifier.
    """

    title: str
    shape: str
    words: int
    callers: tuple[int, ...]
    new: int = 0


LOADS = (
    Load("DistilBERT, 100 words", "distilbert-base", 100, (1, 16, 128)),
    Load("distilgpt2, 8 words to 50 tokens", "distilgpt2", 8, (1, 32), 50),
    Load("BART-large, 400 words, 4 beams", "bart-large-cnn", 400, (1, 8)),
    Load("Flan-T5-base, 40 words to 48 tokens", "flan-t5-base", 40, (1, 16), 48),
)


def served(device: str, settings: Settings, figures: Figures) -> None:
    """Each load on a server for the GPU (encoders also by their Python steps), and on one for the CPU."""
    for load in LOADS:
        with noted(figures, load.title), ExitStack() as stack:
            repository = Served(load.shape).repository(BOTH, settings.quick)
            servers: dict[str, tuple[str, Steps]] = {ON_GPU: (device, "native"), ON_CPU: ("cpu", "native")}
            if not load.new and load.shape == SHAPE.shape:
                servers[BY_PYTHON] = (device, "python")
            ways: dict[str, Callable[[int], dict[str, float | None]]] = {}
            for label, (kind, steps) in servers.items():
                if not settings.ways or any(word in label for word in settings.ways):
                    server = EmbeddedServer(repository, models=[NAME], device=kind, steps=steps)
                    ways[label] = partial(_measured, server_target(stack.enter_context(server), NAME), load, settings)
            loads = {f"{load.title}, {callers(count)}": count for count in load.callers}
            take_turns(figures, load.title, loads, ways, settings.turns(3))


def _measured(target: Target, load: Load, settings: Settings, count: int) -> dict[str, float | None]:
    inputs = dict.fromkeys((MAX_TOKENS, MIN_TOKENS), (load.new,)) if load.new else {}
    words = parse_lengths(f"fixed:{min(load.words, 24) if settings.quick else load.words}")
    requests = synthetic(8 if settings.quick else MOST_TEXTS, words, settings=inputs)
    seconds = 0.3 if settings.quick else SECONDS
    limits = LoadLimits(seconds=seconds, warmup_requests=count, warmup_seconds=WARM_SECONDS, timeout=TIMEOUT)
    run = measure(target, Closed(count), MeasureSpec(requests, limits))
    busy, memory, captured = (FIGURES[name].of(run) for name in ("gpu busy", "gpu memory", "captured"))
    return {
        **run_figures(run),
        BUSY: None if busy is None else 100 * busy,
        MEMORY: None if memory is None else memory / 1e9,
        CAPTURED: None if captured is None else 100 * captured,
    }


def classifier(ways: Sequence[Way], settings: Settings, figures: Figures) -> None:
    """A distilbert-base on so many texts of one length at once: the session, and from texts to labels."""
    checkpoint = SHAPE.checkpoint(settings.quick)
    count = token_counter(checkpoint)
    widths, sizes = (WIDTHS[:1], SIZES[:2]) if settings.quick else (WIDTHS, SIZES)
    cases = [
        Case(case_name(width, size), Closed(size), Texts(lengths=f"fixed:{width}"), size)
        for width in widths
        for size in sizes
    ]
    loads = {case.name: (case, case.request_set(count)) for case in cases}
    with ExitStack() as stack:
        children = open_ways(settings.chosen(ways), checkpoint, figures, stack)
        turns: dict[str, Turn] = {label: partial(session_figures, child) for label, child in children.items()}
        take_turns(figures, "classifier", loads, turns, settings.turns(5))


def works(device: str) -> Mapping[str, Work]:
    """Return the works for a GPU, or those of a dry run on the CPU."""
    precision = PRECISIONS[device]
    hfx, torch, compiled, sdpa, tensorrt = (
        Way(peer, precision, variant)
        for peer, variant in (("hfx", ""), ("torch", ""), ("torch", COMPILED), ("torch", SDPA), ("hfx", TENSORRT))
    )
    nets = (hfx, torch, sdpa, compiled, *((tensorrt,) if device == "gpu" else ()))

    def generator(title: str, cases: Cases) -> Work:
        return Work(title, cases.measure, COLUMNS, (hfx.label,), "ms")

    return {
        "served": Work(
            "Models of full size and random weights behind Triton", partial(served, device), SERVED_COLUMNS,
            (ON_GPU,), "requests/s",
        ),
        "gpt2": generator("distilgpt2 in process, greedy", Cases("distilgpt2", GPT2, (hfx, torch, compiled))),
        "t5": generator("flan-t5-base in process, greedy", Cases("flan-t5-base", T5, (hfx, torch))),
        "bart": generator(
            "bart-large-cnn in process, 4 beams",
            Cases("bart-large-cnn", BART, (hfx, torch), beams=4, ngram=3, rounds=4),
        ),
        "classifier": Work(
            "distilbert-base in process", partial(classifier, nets), ENCODER_COLUMNS, (hfx.label,), "ms"
        ),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the works; figures are kept by GPU and date."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=tuple(PRECISIONS), default="gpu")
    options, others = parser.parse_known_args(arguments)
    card = gpu_facts().get("gpu", "no GPU")
    return command.run("gpu", works(options.device), others, RESULTS, lambda name, date: f"{name}, {card}, {date}")


if __name__ == "__main__":
    sys.exit(main())
