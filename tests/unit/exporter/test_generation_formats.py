"""The formats and runtimes that the gate of generators publishes, and what it measures to choose them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.errors import VerificationFailed
from hfx.exporter.generation import measure
from hfx.exporter.generation.engine_folder import write
from hfx.exporter.generation.gate import Comparison, Gate, limits
from hfx.exporter.generation.prompts import Effort, Prompt
from hfx.exporter.generation.reference import Work, make_reference
from hfx.exporter.generation.torch_generator import TorchGenerator
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.runtime import CpuChoice
from hfx.exporter.source import open_checkpoint
from hfx.python_backends.engine.request import Settings
from tests.rigs.checkpoints import generator_checkpoints
from tests.rigs.machine.processors import HAS_NATIVE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Any]:
    """The plan of a small int8 generator, a folder for its engines, and the checkpoint's side."""
    folder = tmp_path_factory.mktemp("formats")
    checkpoint = open_checkpoint(str(generator_checkpoints.save(folder / "checkpoint", "gpt2")))
    options = ExportOptions(name="m", repository=folder, precision="int8", device="cpu", max_drop=0.5)
    plan = make_plan(checkpoint, options)
    tokenizer = generator_checkpoints.tokenizer()
    generator = TorchGenerator.open(plan, tokenizer)  # type: ignore[arg-type]
    prompts = [Prompt(word, tuple(tokenizer(word)["input_ids"])) for word in ("one", "two cats", "x")]
    effort = Effort(texts=3, tokens=4, beam_texts=1, beam_tokens=4, prompt_tokens=10, long_texts=0, alone=2)
    work = Work(effort, greedy=Settings(max_tokens=5), beams=Settings(num_beams=2, max_tokens=3))
    return plan, folder / "version", make_reference(generator, prompts, work)


def gate_of(small: Any, *runtimes: Any, **changes: Any) -> Gate:
    plan, version, reference = small
    made = Gate(plan, version, reference, lambda comparison: {runtime: {"f": 1.0} for runtime in comparison.figures})
    write(plan, version, "cpu", runtimes or ("onnxruntime",))
    return replace(made, **changes)


def spoilt(reference: Any) -> Any:
    """Return the checkpoint's side with other likeliest tokens than the engine's."""
    wrong = [
        replace(each, best=np.roll(each.best, 1, axis=1), logits=np.roll(each.logits, 1, axis=1))
        for each in reference.positions
    ]
    return replace(reference, positions=tuple(wrong), noise=0.0)


def test_the_first_formats_within_the_limits_are_published(small: Any) -> None:
    found, choice = gate_of(small).compare_all("cpu", CpuChoice("onnxruntime"))
    assert choice == CpuChoice("onnxruntime")
    assert (found.tried, found.provider, found.refusal) == ((), "CPU", "")
    assert found.formats == small[0].formats("cpu")[0] and found.data == {"onnxruntime": {"f": 1.0}}
    assert found.limits == asdict(limits("int8", 0.5)) and list(found.figures) == ["onnxruntime"]


def test_a_generator_that_is_beyond_the_limits_in_all_formats_is_refused(small: Any) -> None:
    gate = gate_of(small, reference=spoilt(small[2]))
    with pytest.raises(VerificationFailed, match=r"^The int8 engine for CPU \(onnxruntime\) does not continue texts"):
        gate.compare_all("cpu", CpuChoice("onnxruntime"))
    assert gate.attempt("cpu", ("onnxruntime",), small[0].formats("cpu")[0]) is None


def test_formats_that_the_search_tries_count_if_their_figures_are_within_the_limits(small: Any) -> None:
    formats = FORMATS["fp32"]
    found = gate_of(small).attempt("cpu", ("onnxruntime",), formats)
    assert found is not None and found.formats == formats and found.data == {"onnxruntime": {"f": 1.0}}

    def refuse(comparison: Comparison) -> Any:
        raise VerificationFailed("It falls too far.", "Accept more.")

    assert gate_of(small, measure_data=refuse).attempt("cpu", ("onnxruntime",), formats) is None


@pytest.mark.skipif(not HAS_NATIVE, reason="no native kernels for this processor")
def test_whole_texts_are_measured_after_the_next_tokens_of_all_runtimes_and_nothing_twice(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = list[tuple[str, str]]()

    def recording(name: str, function: Any) -> Any:
        def measure(runner: Any, *arguments: Any) -> Any:
            measured.append((name, runner.runtime))
            return function(runner, *arguments)

        return measure

    for name in ("measure_forced", "measure_long"):
        monkeypatch.setattr(measure, name, recording(name, getattr(measure, name)))
    both, gate = ("native", "onnxruntime"), gate_of(small, "native", "onnxruntime")
    formats = small[0].formats("cpu")[0]
    found = gate.attempt("cpu", both, formats, whole=False)
    assert found is not None and found.data == {} and {each.greedy for each in found.figures.values()} == {None}
    assert measured == [("measure_forced", runtime) for runtime in both]
    engine_json = gate.version / "cpu" / "engine.json"
    written = engine_json.stat().st_mtime_ns
    whole, _ = gate.compare_all("cpu", CpuChoice("native"))
    assert measured[2:] == [("measure_long", runtime) for runtime in both]
    assert [each.forced for each in whole.figures.values()] == [each.forced for each in found.figures.values()]
    assert engine_json.stat().st_mtime_ns == written
    gate.compare_all("cpu", CpuChoice("onnxruntime"))  # without native operators, for which the folder is written anew
    assert len(measured) == 4 and engine_json.stat().st_mtime_ns != written


def test_a_runtime_that_the_user_named_has_no_reserve(small: Any) -> None:
    both, wrong = ("native", "onnxruntime"), spoilt(small[2])
    with pytest.raises(VerificationFailed, match=r"\(onnxruntime\)"):  # compared as well, and refused for the same
        gate_of(small, *both, reference=wrong).compare_all("cpu", CpuChoice("native"))
    named = replace(small[0], cpu_runtime="native")
    with pytest.raises(VerificationFailed, match=r"\(native\)"):
        gate_of(small, *both, reference=wrong, plan=named).compare_all("cpu", CpuChoice("native"))
    found, _ = gate_of(small, *both).compare_all("cpu", CpuChoice("native"))
    assert list(found.figures) == ["native", "onnxruntime"] and found.served == "native"
