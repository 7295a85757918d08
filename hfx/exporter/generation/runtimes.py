"""Chooses the CPU runtime of a generator: native operators if they are available and run it, else ONNX Runtime alone.

Neither is timed: ONNX Runtime alone takes 1.3 to 4 times as long for the same steps (docs/benchmarks-generation.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.generation.engine_folder import release_memory, write
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.mixed_precision import FINER, Precision
from hfx.exporter.options import CpuRuntime
from hfx.exporter.runtime import CpuChoice, Runtime, interleave, last_line, why_no_native
from hfx.local import Device
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.spec import NATIVE, read_spec
from hfx.python_backends.errors import EngineError

RUNTIMES: tuple[Runtime, ...] = ("native", "onnxruntime")  # the fastest first
PROMPT, TOKENS = 16, 16  # the lengths of the test request's prompt and of its answer


def possible_runtimes(requested: CpuRuntime, precision: Precision) -> tuple[Runtime, ...]:
    """Return the runtimes that can serve `precision` on this machine, or only the `requested` one if it can.

    Raises UsageError if `requested` are native operators that can't run here.
    """
    if precision not in FINER:
        return RUNTIMES[1:]
    missing = why_no_native()
    if missing and requested == NATIVE:
        raise UsageError(f"--cpu-runtime {requested}: {missing}.", "Use --cpu-runtime auto.")
    possible = RUNTIMES[1:] if missing else RUNTIMES
    return tuple(runtime for runtime in possible if runtime == requested) or possible


def choose(plan: GeneratorPlan, version: Path, device: Device) -> CpuChoice:
    """Return the runtime of the engine folder of `device`; native operators must answer a request first.

    If native operators can't answer, write the folder for ONNX Runtime instead. Raises CheckpointUnsupported if the
    user has named native operators.
    """
    folder = version / device
    if read_spec(folder).runtime != NATIVE:
        return CpuChoice("onnxruntime")
    try:
        with _engine(plan, folder, NATIVE) as engine:
            _answer(plan, engine)
        return CpuChoice("native")
    except EngineError as error:
        reason = last_line(error, folder)
        if plan.cpu_runtime == NATIVE:
            raise CheckpointUnsupported(
                f"Native operators can't run the model ({reason}).", "Use --cpu-runtime auto or onnxruntime."
            ) from error
    finally:
        release_memory()
    write(plan, version, device, ("onnxruntime",))
    return CpuChoice("onnxruntime", refused={NATIVE: reason})


def seconds_of(plan: GeneratorPlan, folders: Mapping[str, tuple[Path, Runtime]]) -> dict[str, float]:
    """Return name -> seconds of one request in an engine folder, the least of several that are measured in turn."""
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(_engine(plan, folder, runtime)) for name, (folder, runtime) in folders.items()
        }
        ways = {name: partial(_answer, plan, engine) for name, engine in engines.items()}
        return {name: min(seconds) for name, seconds in interleave(ways).items()}


def _answer(plan: GeneratorPlan, engine: Engine) -> None:
    engine.submit(_request(engine, plan)).result()


def _engine(plan: GeneratorPlan, folder: Path, runtime: str) -> Engine:
    """Open an engine with the model's threads and beams, but only as many slots as beams. Raises EngineError."""
    beams = _beams(plan)
    return Engine.open(
        folder, slots=beams, max_queue=1, threads=plan.threads, runtime=runtime, beams=(beams,), prefix_cache_mb=0
    )


def _beams(plan: GeneratorPlan) -> int:
    return int(plan.settings.defaults.get("num_beams", 1))


def _request(engine: Engine, plan: GeneratorPlan) -> Request:
    """Return a request of arbitrary tokens that fits the model."""
    spec, beams = engine.spec, _beams(plan)
    start = plan.settings.decoder_start_token_ids if spec.has_encoder else ()
    length = min(PROMPT, spec.max_source if spec.has_encoder else spec.max_length // 2)
    tokens = min(TOKENS, spec.max_length - (len(start) or length))
    prompt = tuple((7 * place + 1) % spec.vocab_size for place in range(length))
    return Request(prompt, Settings(max_tokens=tokens, num_beams=beams, decoder_prompt=start))
