"""The output of `hfx export`: the plan, the steps, and the measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hfx.cli.export import _plan_lines
from hfx.cli.export_summary import details, equal_share, next_command, summary
from hfx.cli.output import Reporter
from hfx.exporter.mixed_precision import SEARCH, Search
from hfx.exporter.progress import counted, shown
from hfx.names import Task
from tests.rigs.files.manifests import manifest

TIMES = {"native": {"1x16+16": 1.5}, "onnxruntime": {"1x16+16": 2.0}}
GREEDY = {"same": 0.75, "texts": 4, "ties": 0.0, "batch_variants": 0}
GENERATOR: dict[str, Any] = {
    "precision": "int8",
    "agreement": 0.991,
    "forced": {"positions": 200, "texts": "4", "ties": 0.0, "delta": 0.1},
    "greedy": GREEDY,
    "beams": {**GREEDY, "num_beams": 4, "same": 1.0},
}


def test_a_plan_has_no_empty_rows() -> None:
    plan = {"name": "m", "revision": None, "precision": {"cpu": "int8", "gpu": None}, "verify_data": [], "widths": [16]}
    assert _plan_lines({**plan, "replaces": False}, verbose=False) == [
        "name            m",
        "precision       cpu int8",
        "replaces        no",
    ]
    assert "widths          16" in _plan_lines(plan, verbose=True)


def test_steps_are_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    step = Reporter().numbered(2)
    for title in ("Loading", "Publishing"):
        with step(title):
            pass
    assert capsys.readouterr().err == "[1/2] Loading\n[2/2] Publishing\n"


def test_a_long_step_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr("hfx.cli.output.time.monotonic", lambda: next(clock))
    with Reporter().numbered(2)("Comparing") as show, shown(show):
        assert list(counted(range(4), "batches")) == [0, 1, 2, 3]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[1/2] Comparing" and "[1/2] Comparing: 2 of 4 batches" in lines
    assert list(counted("ab", "letters")) == ["a", "b"], "outside of a step nothing is shown"


def test_the_summary_of_a_generator_has_runtime_agreement_and_times() -> None:
    choice = {"runtime": "native", "requested": "auto", "milliseconds": TIMES}
    published = manifest(task=Task.TEXT_GENERATION, parity={"cpu": GENERATOR}, choices={"cpu_runtime": choice})
    _, precision, tokens, texts, times = summary(published, Path("model_repository"))
    assert "int8 on native operators" in precision and "of 2 runtimes" in precision
    assert tokens.strip().startswith("99.10 % of 200")
    assert "75.0 % of 4 (greedy)" in texts and "100.0 % of 4 (4 beams)" in texts
    assert times.endswith("native operators 1.50 ms, ONNX Runtime 2.00 ms")
    near = {**choice, "near": ["native", "onnxruntime"], "other_cores": 1.2}
    published = manifest(task=Task.TEXT_GENERATION, parity={"cpu": GENERATOR}, choices={"cpu_runtime": near})
    _, precision, *_, busy = summary(published, Path("model_repository"))
    assert precision.endswith("ONNX Runtime (within 5 %)")
    assert "1.2 of the cores" in busy


TIES: dict[str, Any] = {"precision": "int8", "requests": 200, "agreement": 0.95, "ties": 0.04, "mean_drift": 0.01}
DECIDED: dict[str, Any] = {**GENERATOR, "agreement": 1.0, "forced": {**GENERATOR["forced"], "ties": 0.04}}


@pytest.mark.parametrize(
    ("figures", "shares"),
    [(TIES, "95.00 % of 200 answers"), (DECIDED, "96.00 % of 200 next tokens")],
    ids=["encoder", "generator"],
)
def test_a_tie_is_no_equal_answer_in_any_line(figures: dict[str, Any], shares: str) -> None:
    search = Search("int8", kept=("layers.1.out",), products=9, speedup=2.0).as_json()
    published = manifest(parity={"cpu": figures}, choices={SEARCH: search})
    [line] = [line.strip() for line in summary(published, Path("r")) if "equal" in line]
    assert line.startswith(shares) and "4.00 % are ties" in line
    assert equal_share(figures) == float(shares.partition(" ")[0]) / 100


@pytest.mark.parametrize(("kind", "said"), [("CPU", "fp16, compared on the CPU"), ("CUDA", "fp16")])
def test_a_file_for_gpus_says_where_it_was_compared(kind: str, said: str) -> None:
    figures = {"precision": "fp16", "kind": kind, "agreement": 1.0, "requests": 9, "ties": 0.0}
    lines = summary(manifest(parity={"gpu": figures}, choices={}), Path("model_repository"))
    assert lines[1].split(maxsplit=1) == ["GPU", said]


def test_the_details_have_the_seconds_of_each_step() -> None:
    published = manifest(parity={}, choices={"seconds": {"Building the graph": 1.5, "Comparing answers": 12.25}})
    assert details(published)[1:] == ["  seconds of each step: Building the graph 1.5, Comparing answers 12.25"]


def test_the_longest_prompt_that_was_compared_is_told() -> None:
    long = {"texts": 3, "longest": 1024, "positions": 384, "agreement": 0.9922, "ties": 0.0, "error": 0.03}
    figures = {**GENERATOR, "forced": {**GENERATOR["forced"], "error": 0.02}, "long": long}
    published = manifest(task=Task.TEXT_GENERATION, parity={"cpu": figures}, choices={})
    tokens = summary(published, Path("model_repository"))[2]
    assert "99.22 % of 384" in tokens and tokens.endswith("1024 tokens")
    assert "  cpu long: texts 3, longest 1024, positions 384, agreement 0.9922, ties 0, error 0.03" in details(
        published
    )
    short = {"cpu": {**GENERATOR, "long": None}}
    assert "up to" not in "".join(summary(manifest(task=Task.TEXT_GENERATION, parity=short, choices={}), Path("r")))


def test_the_summary_says_that_an_encoder_is_computed_in_bfloat16() -> None:
    compared = {"mean_drift": 1e-3, "max_drift": 1e-2, "delta": 0.1, "batch_delta": 0}
    parity = {"cpu": {"precision": "fp32", "requests": 9, "agreement": 1.0, "ties": 0.0, **compared}}
    choices = {"cpu_math": "bf16", "cpu_runtime": {"runtime": "native", "requested": "auto", "milliseconds": {}}}
    _, line, _ = summary(manifest(parity=parity, choices=choices), Path("r"))
    assert line.split(maxsplit=1) == ["CPU", "fp32 on native operators, computed in bfloat16"]


def test_the_summary_names_unverified_devices_and_refused_runtimes() -> None:
    choice = {"runtime": "onnxruntime", "requested": "auto", "milliseconds": {}, "refused": {"native": "No such op."}}
    unverified = {"precision": "fp16", "unverified": "There is no GPU."}
    encoder = {"precision": "fp32", "requests": 9, "agreement": 1.0, "ties": 0.0}
    parity = {"cpu": encoder, "gpu": unverified, "data": {"d.csv": {"metric": "accuracy", "rows": 2, "torch": 0.5}}}
    text = "\n".join(summary(manifest(parity=parity, choices={"cpu_runtime": choice}), Path("r")))
    assert "fp32 on ONNX Runtime" in text and "No such op" in text
    assert ": There is no GPU." in text
    assert "2 rows of d.csv" in text and "0.5000" in text
    assert next_command(Path("my models"), "m") == "Next: hfx serve 'my models'"
