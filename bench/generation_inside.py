"""The works that look into hfx itself: overhead of a step, memory, time by operator, and what an export takes.

Owns which cases are looked at. How each is measured stands in generation_steps.py, generation_memory.py,
generation_profile.py, generation_profile_openvino.py and generation_export.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from bench import generation_memory, generation_profile, generation_profile_openvino, generation_steps
from bench.generation_cases import Batch, open_model
from bench.generation_export import ExportFailed, export
from bench.generation_figures import Result
from bench.generation_peers import CT2, ORT, ORT4, ORT8, OV4, OV8, Way
from bench.generation_works import BART_CASES, FAILURES, GPT2_CASES, T5_CASES, Settings, rounds, say
from bench.peers.conversions import conversion
from bench.peers.resident import Open, Resident

MEMORY = Batch(32, 8, 50)
OVERHEAD = (("distilgpt2", Batch(1, 8, 100)), ("distilgpt2", Batch(32, 8, 100)), ("bart-large-cnn", BART_CASES[0]))
PROFILES = (
    *(("distilgpt2", "int8", case) for case in GPT2_CASES),
    ("distilgpt2", "int4", GPT2_CASES[0]),
    *(("flan-t5-base", "int8", case) for case in T5_CASES),
    ("flan-t5-base", "int4", T5_CASES[0]),
    *(("bart-large-cnn", "int8", case) for case in BART_CASES),
)
PROFILED: dict[str, dict[Way, Open]] = {
    "int8": {ORT8: generation_profile.open_way, OV8: generation_profile_openvino.open_way},
    "int4": {ORT4: generation_profile.open_way, OV4: generation_profile_openvino.open_way},
}
EXPORTED = "bart-large-cnn"
RUNTIMES = {"onnxruntime": ORT8, "openvino": OV8}


def overhead(settings: Settings) -> Result:
    """Milliseconds of a decode step: in the engine, in its runtime within it, and of the bare runs."""
    result = Result()
    for turn in rounds(settings, "overhead", 3):
        for name, case in OVERHEAD:
            small = _small(case, settings)
            for runtime, way in RUNTIMES.items():
                opener = partial(generation_steps.open_way, runtime=runtime)
                for found in _ask(way, name, opener, [small], settings, result):
                    for figure, value in asdict(found).items():
                        if value is not None:
                            result.add((way.name, way.precision, f"{name}, {small.label}", figure), turn, value)
    return result


def memory(settings: Settings) -> Result:
    """Bytes of fresh processes, hfx's and CTranslate2's, on the same batch."""
    result = Result()
    openers: dict[Way, Open] = {
        way: partial(generation_memory.open_ours, runtime=runtime) for runtime, way in RUNTIMES.items()
    }
    openers[CT2] = generation_memory.open_ctranslate2
    for turn in rounds(settings, "memory", 3):
        for way, opener in openers.items():
            for found in _ask(way, "distilgpt2", opener, [MEMORY], settings, result):
                for figure, value in asdict(found).items():
                    result.add((way.name, way.precision, MEMORY.label, figure), turn, value)
    return result


def operators(settings: Settings) -> Result:
    """Facts: the machine's limits; by case the profile of a step."""
    result = Result()
    profiles: list[dict[str, Any]] = []
    for name, precision, whole in PROFILES[:: 4 if settings.tiny else 1]:
        case = _small(whole, settings)
        for way, opener in PROFILED[precision].items():
            say(f"profile of {name} {way.title}, {case.label}")
            for found in _ask(way, name, opener, [case], settings, result):
                profiles.append({"model": name, "way": way.title, "case": case.label, **asdict(found)})
    for limits in _ask(ORT8, PROFILES[0][0], generation_profile.open_way, [None], settings, result):
        result.facts["limits"] = asdict(limits)
    result.facts["profiles"] = profiles
    return result


def exporting(settings: Settings) -> Result:
    """Facts: what `hfx export --quantize` took, and what optimum's export and quantization took when it was cached."""
    result, model = Result(), open_model(EXPORTED, settings.tiny)
    try:
        say(f"hfx export of {model.name}")
        result.facts["hfx"] = asdict(export(model, settings.export_seconds))
    except ExportFailed as reason:
        result.notes["hfx export"] = f"not run: {reason}"
    for title, way in (("optimum", ORT), ("engine folder", ORT8)):
        try:
            folder = way.folder(model)
        except FAILURES as reason:
            result.notes[title] = f"not run: {reason}"
        else:
            assert folder is not None
            result.facts[title] = asdict(conversion(folder))
    return result


def _ask(
    way: Way, name: str, opener: Open, questions: Sequence[object], settings: Settings, result: Result
) -> list[Any]:
    """The answers of `opener` on the model of `way` in a process of its own; none, and a note, where it fails."""
    try:
        model = open_model(name, settings.tiny)
        arguments = {"model": model, "folder": str(way.folder(model)), "fetched": way.fetch()}
        with Resident(opener, **arguments, precision=way.precision) as resident:
            return [resident.answer(question) for question in questions]
    except FAILURES as reason:
        result.notes[f"{way.title}, {name}"] = f"not run: {reason}"
        return []


def _small(case: Batch, settings: Settings) -> Batch:
    return dataclasses.replace(case, rows=min(case.rows, 8), prompt=min(case.prompt, 64)) if settings.tiny else case
