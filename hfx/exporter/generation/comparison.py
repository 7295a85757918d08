"""One device's engine held against the checkpoint, in the first of its formats that is within the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hfx.errors import VerificationFailed
from hfx.exporter.generation import gate
from hfx.exporter.generation.engine_folder import release_memory, write
from hfx.exporter.generation.limits import Figures, Limits, failures, judge, limits
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.reference import Reference
from hfx.exporter.options import Precision
from hfx.exporter.quantize.generator import FORMATS_TRIED, Formats
from hfx.exporter.runtime import CpuChoice, Runtime
from hfx.local import Device, Kind
from hfx.python_backends.engine.errors import ModelRefused, ProviderMissing, StepFailed
from hfx.python_backends.engine.runner import SessionSettings

# What a device's files run on here, the best first: those for GPUs on the CPU where there is no GPU.
PROVIDERS: Mapping[Device, tuple[str, ...]] = {"cpu": ("CPU",), "gpu": ("CUDA", "CPU")}
KINDS: Mapping[str, Kind] = {"CPU": "CPU", "CUDA": "GPU"}


@dataclass(frozen=True)
class Standard:
    """What the engines in the folder `version` are held against, and by which work."""

    plan: GeneratorPlan
    version: Path
    reference: Reference
    work: gate.Work


@dataclass(frozen=True)
class Comparison:
    """What came of a device: the formats that were chosen, those tried before, and the provider that ran the files.

    `figures` are those of each runtime, the one that serves first. There are none of files for GPUs that could not run
    here at all; `refusal` says why.
    """

    device: Device
    precision: Precision
    formats: Formats
    tried: tuple[Mapping[str, Any], ...]
    provider: str
    figures: Mapping[Runtime, Figures]
    refusal: str

    @property
    def at_home(self) -> tuple[Runtime, ...]:
        """The runtimes that ran the files on what they are for."""
        return tuple(self.figures) if self.provider == PROVIDERS[self.device][0] else ()

    @property
    def kind(self) -> Kind:
        """What the files ran on, as hfx.local calls it."""
        return KINDS[self.provider]

    def parity(self, texts: Mapping[Runtime, Any]) -> dict[str, Any]:
        """The figures for the manifest: of the runtime that serves, and in `reserve` of the other.

        `texts` are those of verify.same_texts, of the runtimes that ran on what the files are for.
        """
        common = {"precision": self.precision, "provider": self.provider}
        if not self.figures:
            return {**common, "unverified": self.refusal}
        by_runtime = {
            runtime: {**figures.as_json(), **({"texts": texts[runtime]} if runtime in texts else {})}
            for runtime, figures in self.figures.items()
        }
        serving, *others = by_runtime
        reserve = {"reserve": {runtime: by_runtime[runtime] for runtime in others}} if others else {}
        return {**common, "runtime": serving, **by_runtime[serving], **reserve}

    @property
    def choice(self) -> dict[str, Any]:
        """The formats for the manifest."""
        return {**asdict(self.formats), **({"tried": list(self.tried)} if self.tried else {})}


def runtimes_of(parity: Mapping[str, Any]) -> tuple[Runtime, ...]:
    """The runtimes that a manifest's parity has figures of, the one that serves first."""
    return (parity["runtime"], *parity.get("reserve", {})) if "runtime" in parity else ()


def compare_cpu(standard: Standard, choice: CpuChoice) -> tuple[Comparison, CpuChoice]:
    """Compare the CPU's folder on the runtime of `choice`; returns the runtime that is published, too.

    Where that is beyond the limits in all formats, and the user left the choice, it is ONNX Runtime, which is compared
    in any case: it serves where the other can't be had.
    """
    if choice.runtime == "onnxruntime":
        return compare(standard, "cpu", ("onnxruntime",)), choice
    try:
        return compare(standard, "cpu", (choice.runtime, "onnxruntime")), choice
    except VerificationFailed as failure:
        if standard.plan.cpu_runtime != "auto":
            raise
        reason = failure.message
    write(standard.plan, standard.version, "cpu", ("onnxruntime",))
    other = replace(choice, runtime="onnxruntime", refused={**choice.refused, choice.runtime: reason})
    return compare(standard, "cpu", ("onnxruntime",)), other


def compare(standard: Standard, device: Device, runtimes: tuple[Runtime, ...]) -> Comparison:
    """Compare the folder that was written first for `runtimes`, and write others where one of them fails.

    Raises VerificationFailed where there are no formats in which all `runtimes` are within the limits.
    """
    plan = standard.plan
    # GPU libraries choose kernels by batch size, so that the last bits depend on it by nature; a runtime that was asked
    # for by name is what the user gets, with the figure.
    same = device == "cpu" and plan.cpu_runtime == "auto"
    precision, allowed = plan.built[device], limits(plan.built[device], plan.max_drop, same)
    tried: list[Mapping[str, Any]] = []
    for formats in FORMATS_TRIED[precision]:
        if tried:
            write(plan, standard.version, device, runtimes, formats)
        provider, measured, refusal = _run(standard, device, runtimes, allowed)
        beyond = next((each for each in measured.items() if failures(each[1], allowed)), None)
        if beyond is None:
            return Comparison(device, precision, formats, tuple(tried), provider, measured, refusal)
        runtime, figures = beyond
        tried.append({**asdict(formats), "runtime": runtime, "agreement": round(figures.forced.agreement, 6)})
    judge(f"The {precision} engine for {device.upper()} ({runtime})", figures, allowed)
    raise AssertionError("figures with failures are judged")


def _run(
    standard: Standard, device: Device, runtimes: tuple[Runtime, ...], allowed: Limits
) -> tuple[str, dict[Runtime, Figures], str]:
    """The provider that ran the files, their figures, and why files for GPUs could not run on a machine without one."""
    for provider in PROVIDERS[device]:
        try:
            return provider, _figures(standard, device, runtimes, allowed, provider), ""
        except ProviderMissing:
            if provider == PROVIDERS[device][-1]:
                raise
        except ModelRefused as refusal:
            if (device, provider) == ("gpu", "CPU"):
                return provider, {}, refusal.message
            raise VerificationFailed(
                f"The {device.upper()}'s engine can't run here: {refusal.message}.", refusal.fix
            ) from refusal
        finally:
            release_memory()
    raise AssertionError("the last provider runs or raises")


def _figures(
    standard: Standard, device: Device, runtimes: tuple[Runtime, ...], allowed: Limits, provider: str
) -> dict[Runtime, Figures]:
    """The figures of `runtimes` up to the first that is beyond the limits."""
    plan, figures = standard.plan, dict[Runtime, Figures]()
    for runtime in runtimes:
        session = SessionSettings(plan.threads, provider, runtime=runtime)
        folder = standard.version / device
        try:
            figures[runtime] = gate.measure(folder, plan, standard.reference, standard.work, session)
        except StepFailed as error:
            raise VerificationFailed(
                f"The {plan.built[device]} engine for {device.upper()} ({runtime}) does not continue texts like the "
                f"checkpoint: {error.message}.",
                "Nothing was published. Use another --precision or --cpu-runtime.",
            ) from error
        release_memory()
        if failures(figures[runtime], allowed):
            break
    return figures
