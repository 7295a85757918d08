"""Which runner serves a model: ONNX Runtime's or OpenVINO's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..errors import EngineError, ModelDamaged, ProcessorUnsuited, ProviderMissing
from . import openvino
from .openvino.runners import PagedDecoderRunner, PagedEncoderDecoderRunner
from .ort.kv_cache import CacheMaker, DeviceCache, KvCache
from .ort.runners import OrtDecoderRunner, OrtEncoderDecoderRunner
from .ort.sessions import check_machine, operators_refusal
from .runner import Runner, SessionSettings
from .spec import NATIVE, ONNXRUNTIME, OPENVINO, RUNTIMES, EngineSpec

LOG = logging.getLogger(__name__)
TITLES = {OPENVINO: "OpenVINO", NATIVE: "native operators"}
RESERVE = "ONNX Runtime serves in the place of %s: %s. Fix: %s"


def open_runner(spec: EngineSpec, slots: int, settings: SessionSettings) -> Runner:
    """The runner that `settings` ask for, else the model's own choice. Raises ModelRefused in its kinds."""
    check_machine(spec, settings)
    runtime = chosen_runtime(spec, settings)
    if runtime == OPENVINO:
        try:
            of_kind = PagedEncoderDecoderRunner if spec.has_encoder else PagedDecoderRunner
            return _first_run(spec, lambda: of_kind(spec, slots, settings))
        except ProcessorUnsuited as refused:
            if settings.runtime is not None:
                raise
            LOG.warning(RESERVE, TITLES[OPENVINO], refused.message, refused.fix)
    if runtime == NATIVE:
        assert spec.operators is not None
        settings = replace(settings, operators=spec.operators.path)
        spec = spec.on_operators(spec.operators)
    return _first_run(spec, lambda: _onnxruntime_runner(spec, slots, settings))


def _onnxruntime_runner(spec: EngineSpec, slots: int, settings: SessionSettings) -> Runner:
    device = settings.provider.lower()
    make_cache: CacheMaker = KvCache if device == "cpu" else partial(DeviceCache, settings, device)
    of_kind = OrtEncoderDecoderRunner if spec.has_encoder else OrtDecoderRunner
    return of_kind(spec, slots, settings, make_cache)


def _first_run(spec: EngineSpec, open_it: Callable[[], Runner]) -> Runner:
    """A runner probes its model, and libraries have no common exception for one that can't run."""
    try:
        return open_it()
    except EngineError:
        raise
    except Exception as error:
        raise ModelDamaged(
            f"{next(iter(spec.files.decoder.values())).parent} fails in its first run: {error}"
        ) from error


def chosen_runtime(spec: EngineSpec, settings: SessionSettings) -> str:
    """One of RUNTIMES. Where the one that the model prefers can't be had, ONNX Runtime serves, says a log line.

    Raises ProviderMissing where `settings` name one that can't be had, or that is unknown.
    """
    if settings.runtime not in (None, *RUNTIMES):
        raise ProviderMissing(f"runtime {settings.runtime!r} is unknown", f"Choose one of {', '.join(RUNTIMES)}")
    wanted = settings.runtime or spec.runtime
    if settings.provider != "CPU" or wanted == ONNXRUNTIME:
        return ONNXRUNTIME
    refused = openvino.refusal(spec) if wanted == OPENVINO else operators_refusal(spec.operators)
    if refused is None:
        return wanted
    reason, fix = refused
    if settings.runtime is not None:
        raise ProviderMissing(reason, fix)
    LOG.warning(RESERVE, TITLES[wanted], reason, fix)
    return ONNXRUNTIME
