"""`python -m bench.docs`: the measured parts of README.md and of pages in docs/, and a picture, from bench/results."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from bench import proof as proofs
from bench.command import write_page
from bench.docs_chart import peers_chart
from bench.figures import Figures, load, machine_line, number, table
from bench.gpu import RESULTS as GPU_RESULTS
from bench.gpu import works as gpu_works
from bench.published import RESULTS as PUBLISHED_RESULTS
from bench.published import WORKS as PUBLISHED_WORKS
from bench.scenarios import HFX, PACE, SCENARIOS
from hfx.errors import HfxError

RESULTS, PICTURE = Path("bench/results/scenarios.jsonl"), Path("docs/images/peers.svg")
README, PAGE, GPU_PAGE = Path("README.md"), Path("docs/benchmarks.md"), Path("docs/benchmarks-gpu.md")
PROOF_PAGE = Path("docs/proof.md")
PUBLISHED_PAGE = Path("docs/checkpoints.md")
CHANGED = "2026-11-28"  # the day from which the code for GPUs is no longer that of earlier results
LEFT_OUT = (PACE, "rows a step", "of the limit")  # of the tables
# Rows of README.md: scenario, case, words. Columns: a peer by its labels.
SHOWN = (
    ("mlserver-burst", "512 at once", "distilgpt2: 512 prompts at once, 50 tokens each"),
    ("faq", "questions, 8 callers", "Flan-T5-base: answers of 48 tokens, 8 callers"),
    ("billsum", "documents, 4 callers", "BART-large: summaries with 4 beams, 4 callers"),
    ("classify", "128 tokens, 8 callers", "DistilBERT: 128 tokens, 8 callers"),
    ("classify", "16 tokens, 8 callers", "DistilBERT: 16 tokens, 8 callers"),
)
PEERS = {
    "CTranslate2": ("ctranslate2 int8",),
    "OpenVINO": ("openvino int8", "genai int8"),
    "optimum": ("optimum int8",),
    "MLServer": ("mlserver bf16",),
    "torch": ("torch fp32",),
}
NONE = "No result is in bench/results yet: `make bench` measures, `make bench-docs` writes this section.\n"


def main() -> int:
    """Write the section and the picture, in the current folder."""
    try:
        results = load(RESULTS)
        write_page(README, proof(results) if results else NONE, "performance")
        write_page(PAGE, f"{summary(results)}\n\n{scenarios(results)}" if results else NONE, "performance")
        write_page(GPU_PAGE, on_gpus(load(GPU_RESULTS)), "results")
        write_page(PROOF_PAGE, proofs.page(load(proofs.RESULTS)), "lm-eval")
        write_page(PUBLISHED_PAGE, published(load(PUBLISHED_RESULTS)), "published weights")
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(peers_chart(results, HFX, PACE), encoding="utf-8")
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def proof(results: Mapping[str, Figures]) -> str:
    """The table of README.md: how many times as fast as its peers hfx is."""
    rows = []
    for name, case, words in SHOWN:
        figures = results[name]
        ratios = [[figures.ratio((HFX, case, PACE), (peer, case, PACE)) for peer in peers] for peers in PEERS.values()]
        rows.append((words, *(next((f"{number(ratio)} x" for ratio in each if ratio), "") for each in ratios)))
    return table("", ("hfx in int8, requests a second relative to", *PEERS), rows).split("\n", 2)[2]


def summary(results: Mapping[str, Figures]) -> str:
    """How many goals are met, and those that are missed."""
    goals = [goal.judge(results[name]) for name in results for goal in SCENARIOS[name].goals]
    missed = [f"- {words}: {number(value)}" for words, value, met in goals if met is False]
    verdict = f"{sum(met is True for *_, met in goals)} of {len(goals)} goals are met."
    machine = _wrapped(machine_line(next(iter(results.values()))))
    return "\n".join([machine, "", *([f"{verdict} Missed:", "", *missed] if missed else [verdict])])


def scenarios(results: Mapping[str, Figures]) -> str:
    """A table of each scenario: the medians of hfx under each load, and how many times as fast as each peer it is."""
    parts = []
    for name, figures in results.items():
        shown = [column for column in SCENARIOS[name].columns if column not in LEFT_OUT and figures.cases(column)]
        peers = [way for way in figures.ways() if way != HFX]
        rows = [
            (
                case,
                *(number(figures.median(HFX, case, column)) for column in shown),
                *(number(figures.ratio((HFX, case, PACE), (peer, case, PACE))) for peer in peers),
            )
            for case in figures.cases()
        ]
        body = table("", ("load", *shown, *(f"x {peer}" for peer in peers)), rows).split("\n", 2)[2]
        notes = [f"- {subject}: {note}" for subject, note in figures.notes.items()]
        parts += [f"### {name}", "", f"{SCENARIOS[name].title}.", "", body, *notes]
    return "\n".join(parts)


def on_gpus(results: Mapping[str, Figures]) -> str:
    """A table of each run of a work of bench.gpu, and whether the code has changed since the last one."""
    parts = []
    for name, figures in results.items():
        work = gpu_works("gpu")[name.partition(",")[0]]
        shown = [column for column in work.columns if figures.cases(column)]
        rows = [
            (case, way, *(figures.spread(way, case, column) for column in shown))
            for case in figures.cases()
            for way in figures.ways(case)
        ]
        body = table(f"{work.title}: {figures.stamp['gpu']}, {figures.stamp['created'][:10]}",
                     ("load", "candidate", *shown), rows)  # fmt: skip
        line = f"`{figures.stamp['command']}`; {machine_line(figures)}"
        parts += [body.replace("\n\n", f"\n\n{_wrapped(line)}\n\n", 1)]
        parts += [f"- {subject}: {note}" for subject, note in figures.notes.items()]
    if all(figures.stamp["created"] < CHANGED for figures in results.values()):
        text = (
            "The code for GPUs was changed after these runs. What the changes give has not been measured on a GPU yet."
        )
        parts.insert(0, f"{text}\n")
    return "\n".join(parts)


def published(results: Mapping[str, Figures]) -> str:
    """A table of each published checkpoint: what its precisions cost, in four digits."""
    parts = []
    for name, figures in results.items():
        work = PUBLISHED_WORKS[name]
        shown = [column for column in work.columns if figures.cases(column)]
        for case in figures.cases():
            values = {way: [figures.median(way, case, column) for column in shown] for way in figures.ways(case)}
            rows = [(way, *("" if each is None else f"{each:.4g}" for each in row)) for way, row in values.items()]
            parts += [table(case, ("candidate", *shown), rows)]
        parts += [_wrapped(f"`{figures.stamp['command']}`; {machine_line(figures)}") + "\n"]
        parts += [f"- {subject}: {note}\n" for subject, note in figures.notes.items()]
    return "\n".join(parts)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
