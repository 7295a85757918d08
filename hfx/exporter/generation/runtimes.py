"""Which CPU runtime serves a generator: each does the work of a server, through the engine, and the fastest stays.

ONNX Runtime alone is in all of them, and timed where native operators can't run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

from hfx.errors import CheckpointUnsupported
from hfx.exporter.generation.engine_folder import MINIMUM_OPENVINO, release_memory, write
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.runtime import CpuChoice, Runtime, fastest, interleave, last_line, possible_runtimes
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.spec import read_spec
from hfx.python_backends.errors import EngineError

ORDER: tuple[Runtime, ...] = ("openvino", "native", "onnxruntime")
# Rows at a time: one caller, some, and as many as a server has slots by default.
ROWS = (1, 8, 32)
PROMPT, SOURCE, TOKENS = 16, 128, 16  # tokens of a prompt, of an encoder's source, and new ones
SECONDS_A_CASE = 0.5
# Of a model so large that more rows would take longer than this in all, the first cases must do.
SECONDS = 8.0


def write_for_cpu(plan: GeneratorPlan, version: Path) -> dict[str, str]:
    """Write the CPU's engine folder for all runtimes that may serve it; the reason of one that it can't be written for.

    Raises UsageError and CheckpointUnsupported where that is the one that was asked for.
    """
    runtimes = possible_runtimes(plan.cpu_runtime, MINIMUM_OPENVINO, plan.cpu_precision)
    try:
        write(plan, version, "cpu", runtimes)
        return {}
    except (ImportError, RuntimeError) as error:  # a damaged installation; what OpenVINO can't do
        reason = last_line(error, version)
        if plan.cpu_runtime == "openvino":
            raise CheckpointUnsupported(
                f"OpenVINO can't run {plan.checkpoint.id}: {reason}", "Use --cpu-runtime onnxruntime."
            ) from error
    write(plan, version, "cpu", tuple(runtime for runtime in runtimes if runtime != "openvino"))
    return {"openvino": reason}


def choose(plan: GeneratorPlan, folder: Path, refused: Mapping[str, str]) -> CpuChoice:
    """The fastest runtime of the CPU's engine folder, by the geometric mean over cases, with all figures.

    One that can't run the model is `refused` with its reason, too; CheckpointUnsupported where none can. A single one
    has no rival: it answers one request, and is not timed.
    """
    spec = read_spec(folder)
    if spec.runtime == "onnxruntime":
        return CpuChoice("onnxruntime", refused=refused)
    if plan.cpu_runtime != "auto":
        return _fastest(plan, folder, (cast(Runtime, spec.runtime),), refused)
    written = {"openvino": spec.openvino, "onnxruntime": spec.files, "native": spec.operators}
    return _fastest(plan, folder, tuple(cast(Runtime, name) for name, files in written.items() if files), refused)


def _fastest(
    plan: GeneratorPlan, folder: Path, runtimes: tuple[Runtime, ...], unwritten: Mapping[str, str]
) -> CpuChoice:
    refused = dict(unwritten)
    with ExitStack() as stack:
        opened: dict[Runtime, Engine] = {}
        for runtime in sorted(runtimes, key=ORDER.index):
            # Steps of the same graphs take 1.6 to 3.2 times as long (docs/benchmarks-generation.md), and to open those
            # of BART-large takes 4 to 8 s.
            if runtime == "onnxruntime" and "native" in opened:
                continue
            try:
                engine = stack.enter_context(_open(folder, plan, runtime))
                _run(engine, _requests(engine, plan, 1))
                opened[runtime] = engine
            except (EngineError, RuntimeError) as error:  # the engine's own, and what OpenVINO raises
                refused[runtime] = last_line(error, folder)
        if not opened:
            reasons = "; ".join(f"{runtime}: {reason}" for runtime, reason in refused.items())
            raise CheckpointUnsupported(f"No CPU runtime can run the model ({reasons}).", "Try another --cpu-runtime.")
        figures = _timed(opened, plan) if len(opened) > 1 else {}
        chosen = fastest(figures) if figures else next(iter(opened))
    release_memory()
    return CpuChoice(chosen, milliseconds=figures, refused=refused)


def _open(folder: Path, plan: GeneratorPlan, runtime: Runtime) -> Engine:
    """The engine as it will be served, but for rows that no case needs."""
    rows = min(max(ROWS), plan.slots)
    return Engine.open(
        folder,
        slots=rows,
        max_queue=rows,
        threads=plan.threads,
        runtime=runtime,
        beams=(_beams(plan),),
        prefix_cache_mb=0,  # the prompts of each case are equal
        guesses=False,  # what is written to them repeats itself as texts don't
    )


def _timed(opened: Mapping[Runtime, Engine], plan: GeneratorPlan) -> dict[Runtime, dict[str, float]]:
    """Runtime -> {"REQUESTSxPROMPT+TOKENS": median milliseconds}."""
    figures: dict[Runtime, dict[str, float]] = {runtime: {} for runtime in opened}
    begin, each = time.monotonic(), 0.0
    beams = _beams(plan)
    for count in sorted({max(min(rows, plan.slots) // beams, 1) for rows in ROWS}):  # a beam takes a row
        # A case takes at least two rounds.
        if time.monotonic() - begin + 2 * count * each > SECONDS:
            break
        requests = _requests(next(iter(opened.values())), plan, count)
        case = f"{count}x{len(requests[0].prompt)}+{requests[0].settings.max_tokens}"
        runs = {runtime: partial(_run, engine, requests) for runtime, engine in opened.items()}
        seconds = interleave(runs, SECONDS_A_CASE, prepared=count == 1)
        each = sum(seconds.values()) / count
        for runtime, median in seconds.items():
            figures[runtime][case] = round(1e3 * median, 3)
    return figures


def _requests(engine: Engine, plan: GeneratorPlan, count: int) -> list[Request]:
    """`count` requests of different tokens; which ones does not matter, and none ends before its time."""
    spec = engine.spec
    length = min(SOURCE, spec.max_source) if spec.has_encoder else min(PROMPT, spec.max_length // 2)
    start = plan.settings.decoder_start_token_ids if spec.has_encoder else ()
    tokens = min(TOKENS, spec.max_length - (len(start) or length))
    settings = Settings(max_tokens=tokens, num_beams=_beams(plan), decoder_prompt=start)
    prompts = (tuple((31 * row + 7 * place + 1) % spec.vocab_size for place in range(length)) for row in range(count))
    return [Request(prompt, settings) for prompt in prompts]


def _beams(plan: GeneratorPlan) -> int:
    return int(plan.settings.defaults.get("num_beams", 1))


def _run(engine: Engine, requests: Sequence[Request]) -> None:
    for handle in [engine.submit(request) for request in requests]:
        handle.result()
