"""One device's engine held against the checkpoint, in the first of its formats that is within the limits.

Owns the formats that are tried and what a device's files run on here; figures and verdict are the gate's.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hfx.errors import VerificationFailed
from hfx.exporter.families import FORMATS, EngineFacts, Formats, write_engine_folder
from hfx.exporter.generation import gate
from hfx.exporter.generation.figures import Figures, failures, judge
from hfx.exporter.generation.limits import limits
from hfx.exporter.generation.memory import let_go
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.reference import Reference
from hfx.exporter.options import Precision
from hfx.exporter.runtime import weight_levels
from hfx.local import Device, Kind
from hfx.python_backends.engine.errors import ModelRefused, ProviderMissing
from hfx.python_backends.engine.sessions import SessionSettings

# What is tried, the fastest first, where the one before is beyond the limits: heads decide between close tokens, a
# source's K and V in int8 lose where few values are large, and finer scales of int4 cost a little speed.
FORMATS_TRIED: Mapping[Precision, tuple[Formats, ...]] = {
    "fp32": (FORMATS["fp32"],),
    "fp16": (FORMATS["fp16"],),
    "int8": (FORMATS["int8"], replace(FORMATS["int8"], head="fp32", cross="float32")),
    "int4": (
        replace(FORMATS["int4"], head="int4", embedding="int4", block=128),
        FORMATS["int4"],
        replace(FORMATS["int4"], head="fp32", cross="float32", block=16),
    ),
}
# What a device's files run on here, the best first: those for GPUs on the CPU where there is no GPU.
PROVIDERS: Mapping[Device, tuple[str, ...]] = {"cpu": ("CPU",), "gpu": ("CUDA", "CPU")}
KINDS: Mapping[str, Kind] = {"CPU": "CPU", "CUDA": "GPU"}


@dataclass(frozen=True)
class Comparison:
    """What came of a device: the formats that were chosen, those tried before, what they ran on, and the figures.

    `figures` is None for files for GPUs that could not run here at all; `refusal` says why.
    """

    device: Device
    precision: Precision
    formats: Formats
    tried: tuple[Mapping[str, Any], ...]
    provider: str
    figures: Figures | None
    refusal: str = ""

    @property
    def at_home(self) -> bool:
        """Whether the files ran on what they are for."""
        return self.provider == PROVIDERS[self.device][0]

    @property
    def kind(self) -> Kind:
        """What the files ran on, as hfx.local calls it."""
        return KINDS[self.provider]

    @property
    def parity(self) -> dict[str, Any]:
        """The figures for the manifest."""
        found = {"precision": self.precision, "provider": self.provider}
        return found | ({"unverified": self.refusal} if self.figures is None else self.figures.as_json())

    @property
    def choice(self) -> dict[str, Any]:
        """The formats for the manifest."""
        return {**asdict(self.formats), **({"tried": list(self.tried)} if self.tried else {})}


def write_first(plan: GeneratorPlan, version: Path, device: Device) -> EngineFacts:
    """The engine folder of `device` in the formats that are tried first; returns the facts of its engine.json."""
    formats = FORMATS_TRIED[plan.built[device]][0]
    return write_engine_folder(plan.checkpoint, version / device, formats, weight_levels())


def compare(plan: GeneratorPlan, version: Path, device: Device, reference: Reference, work: gate.Work) -> Comparison:
    """Compare the folder that `write_first` wrote, and write others where it fails; VerificationFailed if all do."""
    precision, allowed = plan.built[device], limits(plan.built[device], plan.max_drop)
    tried: list[Mapping[str, Any]] = []
    for formats in FORMATS_TRIED[precision]:
        if tried:
            shutil.rmtree(version / device)
            write_engine_folder(plan.checkpoint, version / device, formats, weight_levels())
        provider, figures, refusal = _measured(plan, version, device, reference, work)
        if figures is None or not failures(figures, allowed):
            return Comparison(device, precision, formats, tuple(tried), provider, figures, refusal)
        tried.append({**asdict(formats), "agreement": round(figures.forced.agreement, 6)})
    assert figures is not None
    judge(f"The {precision} engine for {device.upper()}", figures, allowed)
    raise AssertionError("figures with failures are judged")


def _measured(
    plan: GeneratorPlan, version: Path, device: Device, reference: Reference, work: gate.Work
) -> tuple[str, Figures | None, str]:
    """What the files ran on and their figures, or why files for GPUs could not run on this machine, which has none."""
    for provider in PROVIDERS[device]:
        try:
            session = SessionSettings(plan.threads, provider)
            return provider, gate.measure(version / device, plan, reference, work, session), ""
        except ProviderMissing:
            if provider == PROVIDERS[device][-1]:
                raise
        except ModelRefused as refusal:
            if (device, provider) == ("gpu", "CPU"):
                return provider, None, refusal.message
            raise VerificationFailed(
                f"The {device.upper()}'s engine can't run here: {refusal.message}.", refusal.fix
            ) from refusal
        finally:
            let_go()
    raise AssertionError("the last provider runs or raises")
