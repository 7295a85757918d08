"""The gate: the limits of each precision with their reasons, and whether what was measured is within them.

Each device's engine is held against the checkpoint in the first of its formats that is within the limits. One opening
serves all of a runtime: the logits are those of the runner that the engine then has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hfx.errors import VerificationFailed
from hfx.exporter.generation.engine_folder import release_memory, write
from hfx.exporter.generation.measure import NOISE, Figures, measure
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.reference import Reference
from hfx.exporter.options import Precision
from hfx.exporter.quantize.generator import FORMATS_TRIED, Formats
from hfx.exporter.runtime import CpuChoice, Runtime
from hfx.local import Device, Kind
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.errors import ModelRefused, ProviderMissing, StepFailed

# What a device's files run on here, the best first: those for GPUs on the CPU where there is no GPU.
PROVIDERS: Mapping[Device, tuple[str, ...]] = {"cpu": ("CPU",), "gpu": ("CUDA", "CPU")}
KINDS: Mapping[str, Kind] = {"CPU": "CPU", "CUDA": "GPU"}
# The usual and the worst error of logits at long texts, as multiples of those at short ones; or LEAST_ERROR. Of right
# random and trained GPT-2, Llama, BART and T5, int8 in all runtimes, they are 0.6 to 1.2 and 0.5 to 2.1; of some random
# ones of odd shapes up to 2.0 and 2.2. Where positions, distances or chunks are wrong
# (tests/unit/exporter/test_generation_long.py), one of both is 2.3 to 40. Next tokens do not tell: of right int8
# engines 96 to 99 % are equal in running text, of wrong ones up to 100 %.
MOST_GROWTH, MOST_WORST, LEAST_ERROR = 2.0, 4.0, 0.02
OWN_TEXTS = "The bundled texts may be unlike what it was trained on: give some of yours with --verify-data. "


@dataclass(frozen=True)
class Limits:
    """Limits of one precision; None: recorded, but not limited.

    `agreement`: least share of positions of the checkpoint's continuations where the likeliest token is the
    checkpoint's, positions that are a tie left out. `greedy`, `beams`: least share of whole texts with the checkpoint's
    tokens, ties counted as equal. `delta`: largest difference of any logit, as a share of the largest logit.
    `batch_variant`: most texts that have other tokens or log-probabilities, to the bit, in another batch.
    """

    agreement: float
    greedy: float | None = None
    beams: float | None = None
    delta: float | None = None
    batch_variant: int | None = 0


LIMITS: Mapping[Precision, Limits] = {
    # float32 sums in another order: 1e-6 to 1e-5 of the largest logit over 12 layers. Whole texts are equal to the
    # token. One text of a hundred may differ with beams: two of their hypotheses can have equal scores at any step, and
    # that can't be told from the last scores as it can be told from a greedy text's logits.
    "fp32": Limits(agreement=0.999, greedy=1.0, beams=0.99, delta=NOISE),
    "fp16": Limits(agreement=0.99),
    "int8": Limits(agreement=0.99),
    "int4": Limits(agreement=0.99),
}


def limits(precision: Precision, max_drop: float | None, same_in_any_batch: bool = True) -> Limits:
    """The limits of a precision; `max_drop` is the share of tokens that the user lets change.

    Without `same_in_any_batch`, other log-probabilities in another batch are recorded, and allowed.
    """
    chosen = replace(LIMITS[precision], batch_variant=0 if same_in_any_batch else None)
    if max_drop is None:
        return chosen
    share = 1.0 - max_drop
    return replace(
        chosen,
        agreement=share,
        greedy=None if chosen.greedy is None else share,
        beams=None if chosen.beams is None else share,
    )


def judge(what: str, figures: Figures, limits: Limits) -> None:
    """Raise VerificationFailed, with the figures, unless all are within `limits`. A NaN is never within."""
    if failed := failures(figures, limits):
        raise VerificationFailed(
            f"{what} does not continue texts like the checkpoint: {'; '.join(failed)}.",
            f"Nothing was published. {OWN_TEXTS if figures.forced.texts == 'bundled' else ''}"
            "Use another --precision or --cpu-runtime, or accept more with --max-drop.",
        )


def failures(figures: Figures, limits: Limits) -> list[str]:
    """What is beyond the limits, in words."""
    forced = figures.forced
    checks = {
        f"token agreement {forced.agreement:.4f} at {forced.positions} positions of {forced.texts} texts "
        f"({forced.ties:.4f} ties left out), "
        f"at least {limits.agreement:.4f}": forced.agreement >= limits.agreement,
        f"logits finite, largest difference {forced.delta:.2e}": bool(np.isfinite(forced.delta)),
    }
    if limits.delta is not None:
        text = f"largest difference {forced.delta_share:.2e} of the largest logit, at most {limits.delta:.0e}"
        checks[text] = forced.delta_share <= limits.delta
    checks |= _long_checks(figures, limits)
    for name, whole, least in (("greedy", figures.greedy, limits.greedy), ("beams", figures.beams, limits.beams)):
        if whole is None:
            continue
        if least is not None:
            text = f"{name}: {whole.same:.4f} of {whole.texts} texts and {whole.ties:.4f} ties, at least {least:.4f}"
            checks[text] = round(whole.same + whole.ties, 9) >= least
        if limits.batch_variant is not None:
            text = f"{name}: {whole.company} of {whole.alone} texts have other log-probabilities in another batch"
            checks[text] = whole.company <= limits.batch_variant
    return [text for text, passed in checks.items() if not passed]


def _long_checks(figures: Figures, limits: Limits) -> dict[str, bool]:
    """Long texts are judged by logits: the next token of any text is less sure than that of the checkpoint's own."""
    long, short = figures.long, figures.forced
    if long is None:
        return {}
    where = f"at {long.positions} positions of texts up to {long.longest} tokens"
    most, worst = (max(limit, LEAST_ERROR) for limit in (MOST_GROWTH * short.error, MOST_WORST * short.worst))
    checks = {
        f"error of logits {long.error:.2e} {where}, at most {most:.2e}": long.error <= most,
        f"worst error of logits {long.worst:.2e} {where}, at most {worst:.2e}": long.worst <= worst,
    }
    if limits.delta is not None:
        text = f"largest difference {long.delta_share:.2e} of the largest logit {where}, at most {limits.delta:.0e}"
        checks[text] = long.delta_share <= limits.delta
    return checks


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
    def served(self) -> Runtime | None:
        """The runtime that serves, where it ran the files on what they are for."""
        return next(iter(self.figures), None) if self.provider == PROVIDERS[self.device][0] else None

    def parity(self, texts: Mapping[str, Any] | None) -> dict[str, Any]:
        """The figures for the manifest: of the runtime that serves, and in `reserve` of the other.

        `texts` are those of verify.same_texts, of the runtime that serves.
        """
        common = {"precision": self.precision, "provider": self.provider}
        if not self.figures:
            return {**common, "unverified": self.refusal}
        (serving, figures), *others = self.figures.items()
        texts_served = {} if texts is None else {"texts": texts}
        reserve = {"reserve": {runtime: other.as_json() for runtime, other in others}} if others else {}
        return {**common, "runtime": serving, **figures.as_json(), **texts_served, **reserve}

    @property
    def choice(self) -> dict[str, Any]:
        """The formats for the manifest."""
        return {**asdict(self.formats), **({"tried": list(self.tried)} if self.tried else {})}


def runtimes_of(parity: Mapping[str, Any]) -> tuple[Runtime, ...]:
    """The runtimes that a manifest's parity has figures of, the one that serves first."""
    return (parity["runtime"], *parity.get("reserve", {})) if "runtime" in parity else ()


@dataclass(frozen=True)
class Gate:
    """Compares the engines in the folder `version` with what `reference` has of the checkpoint."""

    plan: GeneratorPlan
    version: Path
    reference: Reference

    def compare_cpu(self, choice: CpuChoice) -> tuple[Comparison, CpuChoice]:
        """Compare the CPU's folder on the runtime of `choice`; returns the runtime that is published, too.

        Where that is beyond the limits in all formats, and the user left the choice, it is ONNX Runtime, which is
        compared in any case: it serves where the other can't be had.
        """
        if choice.runtime != "onnxruntime":
            try:
                return self.compare("cpu", (choice.runtime, "onnxruntime")), choice
            except VerificationFailed as failure:
                if self.plan.cpu_runtime != "auto":
                    raise
                refused = {**choice.refused, choice.runtime: failure.message}
            write(self.plan, self.version, "cpu", ("onnxruntime",))
            choice = replace(choice, runtime="onnxruntime", refused=refused)
        return self.compare("cpu", ("onnxruntime",)), choice

    def compare(self, device: Device, runtimes: tuple[Runtime, ...]) -> Comparison:
        """Compare the folder that was written first for `runtimes`, and write others where one of them fails.

        Raises VerificationFailed where there are no formats in which all `runtimes` are within the limits.
        """
        plan = self.plan
        # GPU libraries choose kernels by batch size, so that the last bits depend on it by nature; a runtime that was
        # asked for by name is what the user gets, with the figure.
        same = device == "cpu" and plan.cpu_runtime == "auto"
        precision, allowed = plan.built[device], limits(plan.built[device], plan.max_drop, same)
        tried: list[Mapping[str, Any]] = []
        for formats in FORMATS_TRIED[precision]:
            if tried:
                write(plan, self.version, device, runtimes, formats)
            provider, measured, refusal = self._by_provider(device, runtimes, allowed)
            beyond = next((each for each in measured.items() if failures(each[1], allowed)), None)
            if beyond is None:
                return Comparison(device, precision, formats, tuple(tried), provider, measured, refusal)
            runtime, figures = beyond
            tried.append({**asdict(formats), "runtime": runtime, "agreement": round(figures.forced.agreement, 6)})
        judge(f"The {precision} engine for {device.upper()} ({runtime})", figures, allowed)
        raise AssertionError("figures with failures are judged")

    def _by_provider(
        self, device: Device, runtimes: tuple[Runtime, ...], allowed: Limits
    ) -> tuple[str, dict[Runtime, Figures], str]:
        """The provider that ran the files, their figures, and why files for GPUs could not run without a GPU."""
        for provider in PROVIDERS[device]:
            try:
                return provider, self._figures(device, runtimes, allowed, provider), ""
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
        self, device: Device, runtimes: tuple[Runtime, ...], allowed: Limits, provider: str
    ) -> dict[Runtime, Figures]:
        """The figures of `runtimes` up to the first that is beyond the limits."""
        plan, figures = self.plan, dict[Runtime, Figures]()
        for runtime in runtimes:
            session = SessionSettings(plan.threads, provider, runtime=runtime)
            try:
                figures[runtime] = measure(self.version / device, plan, self.reference, session)
            except StepFailed as error:
                raise VerificationFailed(
                    f"The {plan.built[device]} engine for {device.upper()} ({runtime}) does not continue texts like "
                    f"the checkpoint: {error.message}.",
                    "Nothing was published. Use another --precision or --cpu-runtime.",
                ) from error
            release_memory()
            if failures(figures[runtime], allowed):
                break
        return figures
