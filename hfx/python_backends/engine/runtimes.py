"""The choice of a model's runner and of its runtime: ONNX Runtime with native operators, or ONNX Runtime alone."""

from __future__ import annotations

import logging
from dataclasses import replace

from ..errors import EngineError, ModelDamaged, ProviderMissing
from .placement import PLACEMENTS
from .runners import Runner, new_runner
from .sessions import SessionSettings, check_machine, operators_refusal
from .spec import NATIVE, ONNXRUNTIME, OPENVINO, RUNTIMES, EngineSpec

LOG = logging.getLogger(__name__)
TITLES = {OPENVINO: "OpenVINO", NATIVE: "native operators"}
RESERVE = "ONNX Runtime serves in the place of %s: %s. Fix: %s"
NO_OPENVINO = ("hfx no longer runs it", "Export the model again")


def open_runner(spec: EngineSpec, slots: int, settings: SessionSettings) -> Runner:
    """Open a runner on the runtime of `settings` or on the model's own choice. Raises subclasses of ModelRefused."""
    check_machine(spec, settings)
    runtime = chosen_runtime(spec, settings)
    if runtime == NATIVE:
        assert spec.operators is not None
        settings = replace(settings, operators=spec.operators.path)
        spec = spec.on_operators(spec.operators)
    placement = PLACEMENTS[settings.provider](settings)
    if runtime == ONNXRUNTIME:
        placement.check_products(spec)
    try:
        return new_runner(spec, slots, placement)
    except EngineError:
        raise
    except Exception as error:  # a runner probes its model, and what ONNX Runtime raises has no common class
        raise ModelDamaged(
            f"{next(iter(spec.files.decoder.values())).parent} fails in its first run: {error}"
        ) from error


def chosen_runtime(spec: EngineSpec, settings: SessionSettings) -> str:
    """Return the runtime of `settings`, or the one that the model prefers: one of RUNTIMES.

    If the runtime that the model prefers is unavailable, ONNX Runtime takes its place, with a log line. Other providers
    than CPU always have ONNX Runtime. Raises ProviderMissing if `settings` name an unavailable or unknown runtime.
    """
    if settings.runtime not in (None, *RUNTIMES):
        raise ProviderMissing(f"runtime {settings.runtime!r} is unknown", f"Choose one of {', '.join(RUNTIMES)}")
    wanted = settings.runtime or spec.runtime
    if settings.provider != "CPU" or wanted == ONNXRUNTIME:
        return ONNXRUNTIME
    refused = NO_OPENVINO if wanted == OPENVINO else operators_refusal(spec.operators)
    if refused is None:
        return wanted
    reason, fix = refused
    if settings.runtime is not None:
        raise ProviderMissing(reason, fix)
    LOG.warning(RESERVE, TITLES[wanted], reason, fix)
    return ONNXRUNTIME
