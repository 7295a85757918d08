"""The gate: an engine folder, run by the code that will serve it, against the checkpoint's continuations.

Each device's engine is held against the checkpoint in the first of its formats that is within the limits. One opening
serves all of a runtime: the logits are those of the runner that the engine then has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hfx.errors import VerificationFailed
from hfx.exporter.generation.engine_folder import release_memory, write
from hfx.exporter.generation.forced import is_tie, measure_forced, measure_long, open_rows
from hfx.exporter.generation.limits import LIMITS, Figures, Limits, Whole, failures, judge, limits
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.prompts import Ids, spread_indices
from hfx.exporter.generation.reference import Reference
from hfx.exporter.options import Precision
from hfx.exporter.quantize.generator import FORMATS_TRIED, Formats
from hfx.exporter.runtime import CpuChoice, Runtime
from hfx.local import Device, Kind
from hfx.python_backends.engine.engine import Engine, EngineSettings
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.engine.runners import Runner
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import EngineSpec, read_spec
from hfx.python_backends.errors import ModelRefused, ProviderMissing, StepFailed

SLOTS = 32  # whatever the model is served with: requests must run in batches
BATCHES = (1, 2, 5)  # how many requests run at a time when some are run again
# What a device's files run on here, the best first: those for GPUs on the CPU where there is no GPU.
PROVIDERS: Mapping[Device, tuple[str, ...]] = {"cpu": ("CPU",), "gpu": ("CUDA", "CPU")}
KINDS: Mapping[str, Kind] = {"CPU": "CPU", "CUDA": "GPU"}


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


def measure(folder: Path, plan: GeneratorPlan, reference: Reference, session: SessionSettings) -> Figures:
    """Run the engine folder on the reference's prompts. Raises the engine's ModelRefused where it can't run here."""
    spec, work = read_spec(folder), reference.work
    with ExitStack() as stack:
        runner = open_rows(spec, SLOTS, session)
        stack.callback(runner.close)
        forced = measure_forced(runner, reference, plan.settings.decoder_start_token_ids)
        long = measure_long(runner, spec, reference)
        stack.pop_all()  # the engine closes it: sessions of BART-large take ONNX Runtime 6 s to open
    # fp32 graphs have a noise of their own, which their logits show; what is further off than that is no noise.
    trusted = (LIMITS["fp32"].delta or 0.0) * reference.largest
    margin = 2 * max(reference.noise, forced.delta if forced.delta <= trusted else 0.0)
    alone = work.effort.alone
    with open_engine(runner, spec, reference, session) as engine:
        greedy = measure_greedy(engine, reference, work.greedy, alone, margin)
        beams = measure_beams(engine, reference, work.beams, alone, margin) if reference.beams else None
    return Figures(forced, greedy, beams, work.beams.num_beams, reference.noise, long)


def open_engine(runner: Runner, spec: EngineSpec, reference: Reference, session: SessionSettings) -> Engine:
    """The engine of a runner with SLOTS rows, with room for all of the reference's prompts."""
    return Engine.of(runner, spec, session, EngineSettings(SLOTS, len(reference.prompts)))


def measure_greedy(engine: Engine, reference: Reference, settings: Settings, alone: int, margin: float) -> Whole:
    """Every prompt, greedily. Texts may part at a tie: two tokens whose logits in torch are `margin` apart at most."""
    completions, variant, again = _run(engine, [p.ids for p in reference.prompts], settings, alone)
    same = ties = 0
    for index, (expected, completion) in enumerate(zip(reference.greedy, completions, strict=True)):
        same += completion.ids == expected
        place = _parting(expected, completion.ids)
        if place is not None:
            ties += is_tie(reference.positions[index], place, expected[place], completion.ids[place], margin)
    return Whole(len(completions), same / len(completions), ties / len(completions), again, variant)


def measure_beams(engine: Engine, reference: Reference, settings: Settings, alone: int, margin: float) -> Whole:
    """The prompts that torch searched with beams. Other tokens of an equal score are a tie.

    A score is a sum of log-probabilities, each as uncertain as a logit, over length ** length_penalty.
    """
    prompts = [prompt.ids for prompt in reference.prompts[: len(reference.beams)]]
    completions, variant, again = _run(engine, prompts, settings, alone)
    same = ties = 0
    for expected, score, completion in zip(reference.beams, reference.beam_scores, completions, strict=True):
        equal = completion.ids == expected
        same += equal
        uncertain = margin * (len(expected) + 1) ** (1 - settings.length_penalty)
        ties += not equal and completion.score is not None and abs(completion.score - score) <= uncertain
    return Whole(len(completions), same / len(completions), ties / len(completions), again, variant)


def _run(engine: Engine, prompts: Sequence[Ids], settings: Settings, alone: int) -> tuple[list[Event], int, int]:
    """The completion of each prompt, all submitted at once; how many of some run again had others; how many ran.

    Those are run alone and in smaller BATCHES, and must have the same ids and log-probabilities, to the bit.
    """
    requests = [Request(ids, replace(settings, log_probs=True)) for ids in prompts]
    together = _completions(engine, requests)
    chosen = spread_indices(len(prompts), alone)
    differ = set[int]()
    for size in BATCHES:
        for group in (chosen[at : at + size] for at in range(0, len(chosen), size)):
            again = _completions(engine, [requests[i] for i in group])
            differ |= {i for i, found in zip(group, again, strict=True) if found != together[i]}
    return together, len(differ), len(chosen)


def _completions(engine: Engine, requests: Sequence[Request]) -> list[Event]:
    """The best completion of each request; all are submitted at once."""
    return [handle.result()[0] for handle in [engine.submit(request) for request in requests]]


def _parting(expected: Ids, actual: Ids) -> int | None:
    """The first place where both have a token, and another one."""
    return next((i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b), None)
