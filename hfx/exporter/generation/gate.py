"""The gate: the limits of each precision with their reasons, and the check that an engine's figures are within them.

Formats are tried in order until the engine of a device is within the limits. One runner serves all measurements of a
runtime: its logits are compared first, and then it becomes the runner of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hfx.errors import VerificationFailed
from hfx.exporter.generation.engine_folder import release_memory, write
from hfx.exporter.generation.measure import NOISE, Figures, measure
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.reference import Reference
from hfx.exporter.mixed_precision import Precision
from hfx.exporter.quantize.generator import Formats
from hfx.exporter.runtime import CpuChoice, Runtime
from hfx.local import Device, Kind
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.errors import ModelRefused, ProviderMissing, StepFailed

# The providers that can run a device's files here, the best first: without a GPU, the CPU runs the files for GPUs.
PROVIDERS: Mapping[Device, tuple[str, ...]] = {"cpu": ("CPU",), "gpu": ("CUDA", "CPU")}
RESERVE: Runtime = "onnxruntime"  # runs every folder, also where the runtime that serves is not available
KINDS: Mapping[str, Kind] = {"CPU": "CPU", "CUDA": "GPU"}
# The limits of the usual and the worst error of logits at long texts, as multiples of the errors at short texts; a
# limit is at least LEAST_ERROR. Correct engines (random and trained GPT-2, Llama, BART and T5, int8 in all runtimes)
# have multiples of 0.6 to 1.2 and 0.5 to 2.1; some random nets of odd shapes reach 2.0 and 2.2. Where positions,
# distances or chunks are wrong (tests/unit/exporter/test_generation_long.py), one of the two is 2.3 to 40. The
# predicted tokens don't show such faults: in running text, correct int8 engines predict 96 to 99 % of the checkpoint's
# tokens, and wrong engines up to 100 %.
MOST_GROWTH, MOST_WORST, LEAST_ERROR = 2.0, 4.0, 0.02
DataFigures = Mapping[Runtime, Mapping[str, float]]  # the metric of the user's data, by runtime and file
OWN_TEXTS = "The bundled texts may be unlike what it was trained on: give some of yours with --verify-data. "


@dataclass(frozen=True)
class Limits:
    """The limits of one precision. A figure whose limit is None is recorded, but not limited.

    `agreement` is the least share of positions, along the checkpoint's continuations and without ties, at which the
    engine has the checkpoint's likeliest token. `greedy` and `beams` are the least shares of whole texts with the
    checkpoint's tokens; ties count as equal. `delta` is the largest difference of any logit, as a share of the largest
    logit. `batch_variant` is the largest number of texts whose tokens or log-probabilities differ, to the bit, in
    another batch.
    """

    agreement: float
    greedy: float | None = None
    beams: float | None = None
    delta: float | None = None
    batch_variant: int | None = 0


LIMITS: Mapping[Precision, Limits] = {
    # float32 sums in another order differ by 1e-6 to 1e-5 of the largest logit over 12 layers. Whole texts have equal
    # tokens. With beams, one text of a hundred may differ: two hypotheses can have equal scores at any step, and the
    # final scores don't show such a tie, as the logits of a greedy text do.
    "fp32": Limits(agreement=0.999, greedy=1.0, beams=0.99, delta=NOISE),
    # GPU libraries choose kernels by batch size, so the last bits always depend on it.
    "fp16": Limits(agreement=0.99, batch_variant=None),
    "int8": Limits(agreement=0.99),
    "int4": Limits(agreement=0.99),
}


def limits(precision: Precision, max_drop: float | None, named: bool = False) -> Limits:
    """Return the limits of a precision; `max_drop` is the share of tokens that may change, as the user has set it.

    A runtime that the user has `named` is published in spite of texts that differ in another batch; the manifest has
    their number.
    """
    chosen = replace(LIMITS[precision], batch_variant=None) if named else LIMITS[precision]
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
    """Raise VerificationFailed, with the figures, unless all are within `limits`. A NaN is never within a limit."""
    if failed := failures(figures, limits):
        raise VerificationFailed(
            f"{what} does not continue texts like the checkpoint: {'; '.join(failed)}.",
            f"Nothing was published. {OWN_TEXTS if figures.forced.texts == 'bundled' else ''}"
            "Use another --precision or --cpu-runtime, or accept more with --max-drop.",
        )


def failures(figures: Figures, limits: Limits) -> list[str]:
    """Return a sentence for each figure that is beyond its limit."""
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
            variants = whole.batch_variants
            text = f"{name}: {variants} of {whole.alone} texts have other log-probabilities in another batch"
            checks[text] = variants <= limits.batch_variant
    return [text for text, passed in checks.items() if not passed]


def _long_checks(figures: Figures, limits: Limits) -> dict[str, bool]:
    """Return the checks of long texts.

    They compare logits, not tokens: the next token of such a text is less certain than that of a continuation that the
    checkpoint wrote itself.
    """
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
    """The result for one device: the chosen formats, the formats tried before, and the provider that ran the files.

    `figures` has the figures of each runtime; the first runtime serves. It is empty for files for GPUs that could not
    run here at all; `refusal` then states the reason. `data` has the task's metric of each runtime on each file of the
    user's data. `limits` are the fields of the Limits that the figures are within.
    """

    device: Device
    precision: Precision
    formats: Formats
    tried: tuple[Mapping[str, Any], ...] = ()
    provider: str = ""
    figures: Mapping[Runtime, Figures] = field(default_factory=dict)
    refusal: str = ""
    data: DataFigures = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def served(self) -> Runtime | None:
        """The runtime that serves; None unless it ran the files on the device that they are for."""
        return next(iter(self.figures), None) if self.provider == PROVIDERS[self.device][0] else None

    def parity(self, texts: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the figures for the manifest: of the runtime that serves and, in `reserve`, of the other runtime.

        `texts` are the figures of verify.same_texts for the runtime that serves.
        """
        common = {"precision": self.precision, "provider": self.provider, "limits": self.limits}
        if not self.figures:
            return {**common, "unverified": self.refusal}
        (serving, figures), *others = self.figures.items()
        texts_served = {} if texts is None else {"texts": texts}
        reserve = {"reserve": {runtime: other.as_json() for runtime, other in others}} if others else {}
        return {**common, "runtime": serving, **figures.as_json(), **texts_served, **reserve}

    @property
    def choice(self) -> dict[str, Any]:
        """The chosen formats and those tried before them, for the manifest."""
        return {**self.formats.as_json(), **({"tried": list(self.tried)} if self.tried else {})}


@dataclass(frozen=True)
class Gate:
    """Compares the engines in the folder `version` with the checkpoint's results in `reference`.

    `measure_data` gives the figures of an engine on the user's data, and raises VerificationFailed if they are too far
    below the checkpoint's. `known` has the figures of the engines that were compared: the same weights may be compared
    again with fewer runtimes. `written` has the state of each device's folder: whether it serves native operators, and
    its formats.
    """

    plan: GeneratorPlan
    version: Path
    reference: Reference
    measure_data: Callable[[Comparison], DataFigures]
    known: dict[tuple[object, ...], Figures] = field(default_factory=dict)
    written: dict[Device, tuple[bool, Formats]] = field(default_factory=dict)

    def compare_all(self, device: Device, choice: CpuChoice) -> tuple[Comparison, CpuChoice]:
        """Compare the folder of `device` on the runtime of `choice`, and return the runtime to publish as well.

        ONNX Runtime is compared in any case, because it serves where the other runtime is not available. It is also
        published if the other runtime is beyond the limits in all formats and the user left the choice to hfx.
        """
        if choice.runtime != RESERVE:
            try:
                return self.compare(device, (choice.runtime, RESERVE)), choice
            except VerificationFailed as failure:
                if self.plan.names_runtime:
                    raise
                refused = {**choice.refused, choice.runtime: failure.message}
            choice = replace(choice, runtime=RESERVE, refused=refused)
        return self.compare(device, (RESERVE,)), choice

    def compare(
        self, device: Device, runtimes: tuple[Runtime, ...], choices: tuple[Formats, ...] = (), whole: bool = True
    ) -> Comparison:
        """Compare the engine folder of `device`, and write it in the next formats if one of `runtimes` fails.

        By default, `choices` are those of the plan, and the folder has been written in the first formats. Only next
        tokens are compared unless `whole`. Raises VerificationFailed if there are no formats in which all `runtimes`
        are within the limits, or if the figures on the user's data are too low.
        """
        plan = self.plan
        allowed = limits(plan.built[device], plan.max_drop, plan.names_runtime)
        tried: list[Mapping[str, Any]] = []
        *_, last = choices or plan.formats(device)
        self.written.setdefault(device, ("native" in runtimes, plan.formats(device)[0]))
        for formats in choices or plan.formats(device):
            # All figures of the last formats are in the error, unless a search follows.
            is_last = formats == last and not plan.searches(device)
            rounds = (2,) if is_last else (1, 1) if whole else (1,)
            compared = self._compared(device, runtimes, formats, allowed, rounds)
            beyond = next((each for each in compared.figures.items() if failures(each[1], allowed)), None)
            if beyond is None:
                self.write(device, runtimes, formats)
                data = self.measure_data(compared) if whole else {}
                return replace(compared, tried=tuple(tried), data=data)
            runtime, figures = beyond
            tried.append({**formats.as_json(), "runtime": runtime, "agreement": round(figures.forced.agreement, 6)})
        judge(f"The {compared.precision} engine for {device.upper()} ({runtime})", figures, allowed)
        raise AssertionError("figures with failures are judged")

    def attempt(
        self, device: Device, runtimes: tuple[Runtime, ...], formats: Formats, whole: bool = True
    ) -> Comparison | None:
        """Return what `compare` returns for the engine folder of `device` in `formats`; None if it refuses them."""
        try:
            return self.compare(device, runtimes, (formats,), whole)
        except VerificationFailed:
            return None

    def write(self, device: Device, runtimes: tuple[Runtime, ...], formats: Formats) -> None:
        """Write the engine folder of `device` for `runtimes`, unless it is in these `formats` already."""
        state = "native" in runtimes, formats
        if self.written.get(device) != state:
            write(self.plan, self.version, device, runtimes, formats)
            self.written[device] = state

    def _compared(
        self, device: Device, runtimes: tuple[Runtime, ...], formats: Formats, allowed: Limits, rounds: tuple[int, ...]
    ) -> Comparison:
        """Return the figures, the provider that ran the files, and why files for GPUs could not run without a GPU."""
        made = Comparison(device, self.plan.built[device], formats, limits=asdict(allowed))
        for provider in PROVIDERS[device]:
            try:
                figures = self._figures(replace(made, provider=provider), runtimes, allowed, rounds)
                return replace(made, provider=provider, figures=figures)
            except ProviderMissing:
                if provider == PROVIDERS[device][-1]:
                    raise
            except ModelRefused as refusal:
                if provider != PROVIDERS[device][0]:
                    return replace(made, provider=provider, refusal=refusal.message)
                raise VerificationFailed(
                    f"The {device.upper()}'s engine can't run here: {refusal.message}.", refusal.fix
                ) from refusal
            finally:
                release_memory()
        raise AssertionError("the last provider runs or raises")

    def _figures(
        self, made: Comparison, runtimes: tuple[Runtime, ...], allowed: Limits, rounds: tuple[int, ...]
    ) -> dict[Runtime, Figures]:
        """Return the figures of `runtimes`, up to the first runtime that is beyond the limits.

        A round takes as many steps of each runtime; the first step compares next tokens only (see `measure`).
        """
        figures = dict[Runtime, Figures]()
        with ExitStack() as stack:
            steps = {each: stack.enter_context(closing(self._steps(made, runtimes, each))) for each in runtimes}
            for count in rounds:
                for runtime in runtimes:
                    *_, figures[runtime] = islice(steps[runtime], count)
                    if failures(figures[runtime], allowed):
                        return figures
        return figures

    def _steps(self, made: Comparison, runtimes: tuple[Runtime, ...], runtime: Runtime) -> Generator[Figures]:
        """Yield the figures of one of the `runtimes` as `measure` does, without measuring what is known."""
        key = (made.device, made.formats, runtime, made.provider)
        known = self.known.get(key)
        if known is not None:
            yield known
            if known.greedy is not None:
                yield known
                return
        self.write(made.device, runtimes, made.formats)
        session = SessionSettings(self.plan.threads, made.provider, runtime=runtime)
        folder, forced = self.version / made.device, None if known is None else known.forced
        try:
            for figures in measure(folder, self.plan, self.reference, session, forced):
                self.known[key] = figures
                yield figures
        except StepFailed as error:
            raise VerificationFailed(
                f"The {made.precision} engine for {made.device.upper()} ({runtime}) does not continue texts like "
                f"the checkpoint: {error.message}.",
                "Nothing was published. Use another --precision or --cpu-runtime.",
            ) from error
