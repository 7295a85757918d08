"""`python -m bench.generate`: hfx's generation in process beside llama.cpp, CTranslate2, OpenVINO, optimum and torch.

Every way runs in a process of its own, in turn with the others; prompts are token ids, and all write equally many. The
cases have another order in each round. The first run of a case in a round follows another case (in the first round,
one of its own); `ms` is the time of the runs after it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import command
from bench.cases import Served, prompts
from bench.child import Child, PeerFailed, apart
from bench.command import Settings, Work, open_ways
from bench.exports import export
from bench.figures import Figures, Goal, noted, take_turns
from bench.packages import conversion, timed
from bench.peers import Batch, Model, Way

# hfx is the faster of its runtimes; peers have their best settings.
RUNTIMES = {"int8": ("native", "onnxruntime"), "int4": ("native", "onnxruntime")}
OURS = {precision: tuple(Way("hfx", precision, runtime) for runtime in names) for precision, names in RUNTIMES.items()}
CT2, ORT = Way("ctranslate2", "int8"), Way("optimum", "int8")
GENAI = {precision: (Way("genai", precision, "f32"), Way("genai", precision)) for precision in ("int8", "int4")}
INTEL = {precision: (Way("openvino", precision, "f32"), Way("openvino", precision)) for precision in ("int8", "int4")}
LLAMA_CPP = {"int8": (Way("llama.cpp", "q8_0"),), "int4": (Way("llama.cpp", "q4_0"), Way("llama.cpp", "q4_k_m"))}
TORCH = (Way("torch", "fp32"), Way("torch", "bf16"))
SLOW, SLOW_ROWS, PATIENCE, SECONDS, AFTER = frozenset({ORT, *TORCH}), 32, 150.0, 0.3, "after another case ms"
COLUMNS = ("ms", AFTER, "tokens/s", "processor ms", "memory MB")


@dataclass(frozen=True)
class Cases:
    """Batches of (rows, prompt, new tokens) of a model by `ways`; slow ones in the first round and with few rows."""

    shape: str
    batches: tuple[tuple[int, int, int], ...]
    ways: tuple[Way, ...]
    beams: int = 1
    ngram: int = 0
    rounds: int = 5

    def measure(self, settings: Settings, figures: Figures) -> None:
        """All ways in every case of every round."""
        quick = [(min(rows, 8), min(prompt, 64), min(new, 8)) for rows, prompt, new in self.batches[:2]]
        sizes = {name(*size): size for size in (quick if settings.quick else self.batches)}
        slow = {way.label for way in SLOW}
        with ExitStack() as stack:
            checkpoint = Served(self.shape).checkpoint(settings.quick)
            children = open_ways(settings.chosen(self.ways), checkpoint, figures, stack)
            ways = {label: partial(self._run, child, label in slow) for label, child in children.items()}
            take_turns(figures, self.shape, sizes, ways, settings.turns(self.rounds), lambda way, case, turn:
                       way in slow and (turn > 0 or sizes[case][0] > SLOW_ROWS), PATIENCE)  # fmt: skip

    def _run(self, child: Child, slow: bool, size: tuple[int, int, int]) -> dict[str, float]:
        rows, prompt, new = size
        batch = Batch(ids=prompts(rows, prompt), new=new, beams=self.beams, ngram=self.ngram)
        first = child.run(batch, warm=not slow)
        sample = first if slow else child.run(batch, SECONDS)
        if sample.value.written != (new,) * rows:
            raise PeerFailed(f"wrote {sample.value.written} tokens instead of {new} in each of {rows} rows")
        ms = 1e3 * statistics.median(sample.seconds)
        return {
            "ms": ms,
            AFTER: 1e3 * first.seconds[0],
            "tokens/s": 1e3 * (new if new > 1 else prompt) * rows / ms,  # written, or read where only one is written
            "processor ms": 1e3 * sample.processor,
            "memory MB": sample.memory / 1e6,
        }


def name(rows: int, prompt: int, new: int) -> str:
    """The name of a case; one that writes a single token measures the prompt."""
    work = f"{prompt} to {new} tokens" if new > 1 else f"{prompt} tokens read"
    return f"{work}, {rows} row{'s' * (rows > 1)}"


def exporting(settings: Settings, figures: Figures) -> None:
    """What `hfx export` took, gate included, and what optimum's export took when it was made for the cache."""
    model = Model.of(Served("bart-large-cnn").checkpoint(settings.quick))
    with noted(figures, "hfx int8"), tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint": model.folder, "precision": "int8", "gate": True}
        apart(timed, convert=export, folder=folder, arguments=options)
        figures.add("hfx int8", "export", 0, **conversion(Path(folder)))
    with noted(figures, ORT.label):
        figures.add(ORT.label, "export", 0, **conversion(ORT.folder(model) or Path()))


def labels(*groups: Sequence[Way]) -> tuple[str, ...]:
    """The names of ways."""
    return tuple(way.label for group in groups for way in group)


def _faster(size: tuple[int, int, int], precision: str, peers: Sequence[Way], least: float, figure: str = "ms") -> Goal:
    """In a case hfx in a precision is so many times as fast as the best of peers."""
    return Goal(name(*size), figure, labels(OURS[precision]), least=least, against=labels(peers),
                relation="inverse", lower=True)  # fmt: skip


def _beside_llama_cpp(sizes: Sequence[tuple[int, int, int]]) -> tuple[Goal, ...]:
    """hfx is at least as fast as llama.cpp, and faster for many callers."""
    least = {1: 1.0, 8: 1.5, 32: 2.0}
    return tuple(_faster(size, each, LLAMA_CPP[each], least[size[0]]) for size in sizes for each in LLAMA_CPP)


def _reading(sizes: Sequence[tuple[int, int, int]]) -> tuple[Goal, ...]:
    """Prompts are read 1.3 times as fast as by GenAI, and twice as fast as by llama.cpp, also after another case."""
    peers = ((GENAI["int8"], 1.3), (LLAMA_CPP["int8"], 2.0))
    return tuple(_faster(size, "int8", *each, figure) for size in sizes for each in peers for figure in ("ms", AFTER))


def _speed(title: str, cases: Cases, *goals: Goal) -> Work:
    return Work(title, cases.measure, COLUMNS, labels(OURS["int8"]), "ms", goals)


GPT2 = tuple((rows, 8, 50) for rows in (1, 8, 32, 128))
LLAMA, READ = (*GPT2[:3], (8, 512, 50)), ((1, 512, 1), (8, 512, 1), (1, 2000, 1), (8, 2000, 1))
LARGE = ((1, 8, 33), (8, 8, 33), (32, 8, 33), (1, 512, 1), (1, 2000, 1))
T5, BART = ((1, 64, 64), (16, 64, 64)), ((1, 768, 64), (4, 768, 64))
GROWTH = (*((2**power, 8, 50) for power in range(8)), *((8, length - 33, 33) for length in (128, 256, 512, 1024)))
GGUF, HEAD = (*LLAMA_CPP["int8"], *LLAMA_CPP["int4"]), Way("genai", "int4", "head")
FEW, ALL = (OURS["int8"][0], OURS["int4"][0], *GGUF), (*OURS["int8"], *OURS["int4"], CT2, ORT, *TORCH)
WORKS = {
    "gpt2": _speed(
        "distilgpt2, greedy",
        Cases("distilgpt2", (*GPT2, *READ[:2]), (*ALL, *GGUF, *GENAI["int8"], *GENAI["int4"], HEAD)),
        _faster(GPT2[0], "int4", (*GENAI["int4"], HEAD), 1.2), _faster(GPT2[0], "int4", (CT2,), 5.0),
        *(_faster(size, each, GENAI[each], 1.05) for size in GPT2[1:] for each in GENAI),
        *(_faster(size, "int8", (CT2,), least) for size, least in zip(GPT2, (2.5, 2.8, 1.7, 1.3), strict=True)),
        *_beside_llama_cpp(GPT2[:3]), *_reading(READ[:2]),
    ),
    "llama": _speed(
        "SmolLM-135M, greedy",
        Cases("smollm-135m", (*LLAMA, *READ), (*ALL, *GGUF, *GENAI["int8"])),
        *(_faster(size, "int8", GENAI["int8"], 1.05) for size in LLAMA[:3]),
        *_beside_llama_cpp(LLAMA[:3]), *_reading(READ),
    ),
    "qwen3": _speed("Qwen3-0.6B, greedy", Cases("qwen3-0.6b", LARGE, FEW, rounds=3), *_beside_llama_cpp(LARGE)),
    "tinyllama": _speed(
        "TinyLlama-1.1B, greedy", Cases("tinyllama-1.1b", LARGE, FEW, rounds=3), *_beside_llama_cpp(LARGE)
    ),
    "t5": _speed(
        "flan-t5-base, greedy", Cases("flan-t5-base", T5, (*ALL, *INTEL["int8"], *INTEL["int4"])),
        _faster(T5[0], "int8", INTEL["int8"], 1.7), _faster(T5[1], "int8", INTEL["int8"], 1.15),
        _faster(T5[0], "int4", (CT2,), 4.0),
        _faster(T5[0], "int8", (CT2,), 2.5), _faster(T5[1], "int8", (CT2,), 2.1),
    ),
    "bart": _speed(
        "bart-large-cnn, 4 beams", Cases("bart-large-cnn", BART, (*ALL, INTEL["int8"][1]), 4, 3, rounds=4),
        *(_faster(size, "int8", peers, least) for size in BART
          for peers, least in (((INTEL["int8"][1],), 2.2), ((CT2,), 2.4))),
        _faster(BART[0], "int8", TORCH[:1], 6.0),
    ),
    "growth": _speed(
        "distilgpt2 by rows and by length", Cases("distilgpt2", GROWTH, (*OURS["int8"], CT2), rounds=2)
    ),
    "export": Work("Export of bart-large-cnn", exporting, ("seconds", "gigabytes", "disk"), goals=(
        Goal("export", "seconds", ("hfx int8",), most=60.0), Goal("export", "gigabytes", ("hfx int8",), most=4.0),
    )),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("generate", WORKS))
