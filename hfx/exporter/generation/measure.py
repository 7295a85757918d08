"""Compares an engine folder, run by the code that will serve it, with the checkpoint's continuations.

Logits are compared first, along the checkpoint's greedy continuations and at places of long texts. The runner predicts
each position from the checkpoint's own tokens before it (teacher forcing), and runs the prompt of a long text in the
chunks that the scheduler makes of it. For an encoder-decoder, each row is filled with the checkpoint's own keys and
values first, because its decoder reads only one token in a step, and a thousand steps of BART-large take 20 s. The
engine's whole texts are compared next.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.prompts import CHUNK, Ids, LongText, spread_indices
from hfx.exporter.generation.reference import Positions, Reference
from hfx.exporter.progress import counted
from hfx.python_backends.engine.engine import Engine, EngineSettings
from hfx.python_backends.engine.partition import Outputs
from hfx.python_backends.engine.plan import Span, part_start
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.engine.runners import DecoderRunner, Runner
from hfx.python_backends.engine.runtimes import open_runner
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import EngineSpec, read_spec

SLOTS = 32  # independent of the slots that the model is served with: requests must run in batches
BATCHES = (1, 2, 5)  # the numbers of requests that run together when some texts are run again
NOISE = 1e-3  # the largest noise of fp32 graphs, as a share of the largest logit; larger differences are errors
ROWS = 16
WIDTH = 1  # one row a request
TINY = 1e-30  # keeps the division possible if all logits of a row are equal
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Forced:
    """Figures position by position along the checkpoint's greedy continuations.

    `agreement` is the share of the `positions` without a tie that have the checkpoint's likeliest token. `ties` is the
    share of positions where another token is the likeliest, and its logit in torch equals the best one within torch's
    own noise. `texts` names the texts: the user's own if there are any, and then `bundled_agreement` is the agreement
    on the bundled texts. `delta` is the largest difference of a logit, and `delta_share` the same as a share of the
    largest logit, over `rows` whole rows. `error` is the root mean square of the errors of the rows, and `worst` the
    largest error of a row (see Tally).
    """

    texts: str
    positions: int
    agreement: float
    ties: float
    bundled_agreement: float | None
    delta: float
    delta_share: float
    rows: int
    error: float
    worst: float


@dataclass(frozen=True)
class Long:
    """Figures as in Forced, at places of `texts` long texts, whose longest prompt has `longest` tokens."""

    texts: int
    longest: int
    positions: int
    agreement: float
    ties: float
    error: float
    worst: float
    delta_share: float


@dataclass(frozen=True)
class Whole:
    """Figures of whole continuations by the engine, which gets all requests at once.

    `same` is the share of `texts` with the checkpoint's tokens, and `ties` the share that first differ at a tie.
    `alone` texts were run again, alone and in smaller batches; `batch_variants` of them had other tokens or
    log-probabilities.
    """

    texts: int
    same: float
    ties: float
    alone: int
    batch_variants: int


@dataclass(frozen=True)
class Figures:
    """All figures of one folder. `noise` is torch's own, in logits; `num_beams` is the number of beams in `beams`."""

    forced: Forced
    greedy: Whole | None  # None, as all others, if the agreement in `forced` was too low to go on
    beams: Whole | None
    num_beams: int
    noise: float
    long: Long | None = None  # None if the model's limit is too low for long texts

    def as_json(self) -> dict[str, Any]:
        """Return the figures for the manifest; `agreement` is at the top level, as for every kind of model."""
        return {
            "agreement": _short(self.forced.agreement),
            "forced": _shortened(self.forced),
            "greedy": None if self.greedy is None else _shortened(self.greedy),
            "beams": None if self.beams is None else {"num_beams": self.num_beams, **_shortened(self.beams)},
            "noise": _short(self.noise),
            "long": None if self.long is None else _shortened(self.long),
        }


def _shortened(value: Any) -> dict[str, Any]:
    return {name: _short(each) if isinstance(each, float) else each for name, each in asdict(value).items()}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def measure(
    folder: Path, plan: GeneratorPlan, reference: Reference, session: SessionSettings, forced: Forced | None = None
) -> Generator[Figures]:
    """Run the engine folder on the reference's prompts; yield the figures of `measure_forced`, and then all figures.

    Figures that are known as `forced` are not measured again. Raises the engine's ModelRefused if it can't run here.
    """
    spec, work = read_spec(folder), reference.work
    with ExitStack() as stack:
        runner = open_rows(spec, SLOTS, session)
        stack.callback(runner.close)
        if forced is None:
            forced = measure_forced(runner, reference, plan.settings.decoder_start_token_ids)
            yield Figures(forced, None, None, work.beams.num_beams, reference.noise)
        long = measure_long(runner, spec, reference)
        stack.pop_all()  # the engine reuses the runner and closes it: ONNX Runtime opens BART-large's sessions in 6 s
    # fp32 graphs have noise of their own, which `forced.delta` measures.
    trusted = NOISE * reference.largest
    margin = 2 * max(reference.noise, forced.delta if forced.delta <= trusted else 0.0)
    alone = work.effort.alone
    with open_engine(runner, spec, reference) as engine:
        greedy = measure_greedy(engine, reference, work.greedy, alone, margin)
        beams = measure_beams(engine, reference, work.beams, alone, margin) if reference.beams else None
    yield Figures(forced, greedy, beams, work.beams.num_beams, reference.noise, long)


def open_engine(runner: Runner, spec: EngineSpec, reference: Reference) -> Engine:
    """Return the engine of a runner with SLOTS rows, whose queue can hold all of the reference's prompts."""
    return Engine.of(runner, spec, EngineSettings(SLOTS, len(reference.prompts)))


def open_rows(spec: EngineSpec, rows: int, settings: SessionSettings) -> Runner:
    """Open a runner with `rows` rows (at least ROWS), one a request. Raises ModelRefused if it can't run here."""
    runner = open_runner(spec, rows, settings)
    runner.open_partition(WIDTH)
    return runner


def measure_forced(runner: Runner, reference: Reference, start: Ids) -> Forced:
    """Compare the tokens at every position of the reference's texts."""
    own, bundled, rows = Tally(), Tally(), Tally()
    prompts = [prompt.ids for prompt in reference.prompts]
    for prompt, position, logits in forced_logits(runner, prompts, reference.greedy, start):
        expected = reference.positions[prompt]
        (own if reference.prompts[prompt].own else bundled).count(logits, expected, position, reference.noise)
        if position in expected.rows:
            rows.add(logits, expected.rows[position])
        elif not np.isfinite(logits).all():
            rows.delta = float("nan")
    judged = own if own.positions else bundled
    return Forced(
        texts="verify-data" if own.positions else "bundled",
        positions=judged.positions,
        agreement=judged.agreement,
        ties=judged.ties / judged.positions,
        bundled_agreement=bundled.agreement if own.positions and bundled.positions else None,
        delta=rows.delta,
        delta_share=rows.delta / reference.largest,
        rows=rows.rows,
        error=rows.error,
        worst=rows.worst,
    )


@dataclass
class Tally:
    """Counts the positions, how many of them have the checkpoint's likeliest token, and how many are ties.

    It also adds up the errors of whole rows. The error of a row of logits is the norm of the difference, as a share of
    the norm of the expected row; the mean is subtracted from both. `delta` is the largest difference of any logit.
    """

    positions: int = 0
    same: int = 0
    ties: int = 0
    rows: int = 0
    squares: float = 0.0
    worst: float = 0.0
    delta: float = 0.0

    def count(self, logits: Logits, expected: Positions, position: int, noise: float) -> None:
        """Count one position. Two tokens are a tie if their logits in torch are equal within twice torch's `noise`."""
        token, best = int(logits.argmax()), int(expected.best[position, 0])
        self.positions += 1
        self.same += token == best
        self.ties += is_tie(expected, position, best, token, 2 * noise)

    def add(self, logits: Logits, expected: Logits) -> None:
        """Add the error of one row."""
        difference, spread = logits - expected, float(np.linalg.norm(expected - expected.mean()))
        error = float(np.linalg.norm(difference - difference.mean())) / max(spread, TINY)
        self.rows += 1
        self.squares += error * error
        self.worst = float(np.maximum(self.worst, error))  # NaN if any is
        self.delta = float(np.maximum(self.delta, np.abs(difference).max()))

    @property
    def agreement(self) -> float:
        """The share of the positions without a tie that have the checkpoint's token; 1 if all positions are ties."""
        decided = self.positions - self.ties
        return self.same / decided if decided else 1.0

    @property
    def error(self) -> float:
        """The root mean square of the errors of all rows."""
        return float(np.sqrt(self.squares / max(self.rows, 1)))


def is_tie(expected: Positions, position: int, first: int, second: int, margin: float) -> bool:
    """Return whether two different tokens, both among the best, have logits in torch at most `margin` apart."""
    best = expected.best[position].tolist()
    if first == second or first not in best or second not in best:
        return False
    logits = expected.logits[position]
    return bool(abs(logits[best.index(first)] - logits[best.index(second)]) <= margin)


def forced_logits(
    runner: Runner, prompts: Sequence[Ids], continuations: Sequence[Ids], start: Ids
) -> Iterator[tuple[int, int, Logits]]:
    """Yield (prompt, position, logits [vocabulary]) of each position; the logits are valid until the next item.

    `start` are the tokens that an encoder-decoder's decoder begins with.
    """
    # Longest first: the rows that still need steps are always the first rows.
    order = sorted(range(len(prompts)), key=lambda i: (-len(continuations[i]), len(prompts[i])))
    for first in counted(range(0, len(order), ROWS), "batches of continuations"):
        batch = order[first : first + ROWS]
        yield from _batch(runner, batch, prompts, continuations, start)
        runner.release_memory()


def _batch(
    runner: Runner, batch: Sequence[int], prompts: Sequence[Ids], continuations: Sequence[Ids], start: Ids
) -> Iterator[tuple[int, int, Logits]]:
    outputs = _begin(runner, [prompts[i] for i in batch], start)
    position, rows = 0, len(batch)
    while rows:
        assert outputs.logits is not None
        for row in range(rows):
            yield batch[row], position, outputs.logits[row]
        rows = sum(len(continuations[i]) > position + 1 for i in batch)
        if rows:
            runner.partitions[WIDTH].set_next_tokens(
                [(row, continuations[batch[row]][position]) for row in range(rows)]
            )
            outputs = runner.partitions[WIDTH].step(rows, logits=True)
        position += 1


def _begin(runner: Runner, prompts: Sequence[Ids], start: Ids) -> Outputs:
    """Run the prompts in the first rows, and return the outputs of position 0."""
    if isinstance(runner, DecoderRunner):
        return runner.run([Span(prompt, rows=(row,)) for row, prompt in enumerate(prompts)], logits=True)
    for row, source in enumerate(prompts):  # one by one: a batch would need memory for its longest source
        runner.encode([source], [((WIDTH, row),)])
    for token in start:
        runner.partitions[WIDTH].set_next_tokens([(row, token) for row in range(len(prompts))])
        outputs = runner.partitions[WIDTH].step(len(prompts), logits=True)
    return outputs


def measure_long(runner: Runner, spec: EngineSpec, reference: Reference) -> Long | None:
    """Compare every place of the reference's long texts; return None if there are none."""
    tally = Tally()
    for long in counted(reference.long, "long texts"):
        indices = {place: index for index, place in enumerate(long.text.places)}
        for place, logits in long_logits(runner, spec, long.text, long.past):
            tally.count(logits, long.positions, indices[place], reference.noise)
            tally.add(logits[long.columns], long.sample[indices[place]])
    runner.release_memory()  # not between texts: the first is the longest
    if not tally.rows:
        return None
    return Long(
        texts=len(reference.long),
        longest=max(long.text.longest for long in reference.long),
        positions=tally.positions,
        agreement=tally.agreement,
        ties=tally.ties / tally.positions,
        error=tally.error,
        worst=tally.worst,
        delta_share=tally.delta / reference.largest,
    )


def long_logits(
    runner: Runner, spec: EngineSpec, text: LongText, past: NDArray[np.float32] | None
) -> Iterator[tuple[int, Logits]]:
    """Yield (place, logits [vocabulary]) of every place of a text; the logits are valid until the next item.

    `past` are the keys and values of an encoder-decoder's inputs (see TorchGenerator.logits_at).
    """
    partition = runner.partitions[WIDTH]
    if isinstance(runner, DecoderRunner):
        for start, outputs in _prompts(runner, text):
            assert outputs.logits is not None
            yield start - 1, outputs.logits[0]
    else:
        assert past is not None
        shaped = past.reshape(*past.shape[:2], spec.kv_heads, spec.head_dim)
        runner.encode([text.source], [tuple((WIDTH, row) for row in range(len(text.starts)))])
        for row, start in enumerate(text.starts):
            partition.put_past(row, shaped[:, :start])
    for step in range(text.steps):
        partition.set_next_tokens([(row, text.inputs[start + step]) for row, start in enumerate(text.starts)])
        outputs = partition.step(len(text.starts), logits=True)
        assert outputs.logits is not None
        for start, logits in zip(text.starts, outputs.logits, strict=True):
            yield start + step, logits


def _prompts(runner: DecoderRunner, text: LongText) -> Iterator[tuple[int, Outputs]]:
    """Run the first inputs of each row as a prompt. Whole chunks that rows have in common are run once."""
    filled = 0
    for row, start in enumerate(text.starts):
        while start - filled > CHUNK:
            runner.run([Span(text.inputs[filled : filled + CHUNK], filled)], logits=False)
            filled += CHUNK
        first = part_start(filled, start)
        yield start, runner.run([Span(text.inputs[first:start], first, rows=(row,))], logits=True)
        filled += CHUNK if filled and start - filled == CHUNK else 0  # the part was the next chunk


def measure_greedy(engine: Engine, reference: Reference, settings: Settings, alone: int, margin: float) -> Whole:
    """Continue all prompts greedily. At a tie, the first differing tokens have torch logits at most `margin` apart."""
    completions, variant, again = _run(engine, [p.ids for p in reference.prompts], settings, alone)
    same = ties = 0
    for index, (expected, completion) in enumerate(zip(reference.greedy, completions, strict=True)):
        same += completion.ids == expected
        pairs = zip(expected, completion.ids, strict=False)
        place = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
        if place is not None:
            ties += is_tie(reference.positions[index], place, expected[place], completion.ids[place], margin)
    return Whole(len(completions), same / len(completions), ties / len(completions), again, variant)


def measure_beams(engine: Engine, reference: Reference, settings: Settings, alone: int, margin: float) -> Whole:
    """Continue the prompts that torch searched with beams. Other tokens with an equal score are a tie.

    A score is a sum of log-probabilities, each as uncertain as a logit, divided by length ** length_penalty.
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
    """Return the completion of each prompt, how many texts differed when they ran again, and how many ran again.

    All prompts are submitted at once. Then `alone` of them are run again, alone and in smaller BATCHES. A text differs
    if its ids or log-probabilities are not the same to the bit.
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
    """Return the best completion of each request; all requests are submitted at once."""
    handles = [engine.submit(request) for request in requests]
    return [handle.result()[0] for handle in counted(handles, "texts")]
