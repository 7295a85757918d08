"""What is measured of an engine folder, run by the code that will serve it, against the checkpoint's continuations.

Its logits, along the checkpoint's greedy continuations and at places of long texts: each position is predicted from the
checkpoint's own tokens before it (teacher forcing), by the runner that serves. The prompt of a long text is run in the
chunks that the scheduler makes of it. An encoder-decoder's rows begin with the checkpoint's own keys and values, as its
decoder reads one token a step: a thousand steps of BART-large take 20 s. Then whole texts, by its engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

SLOTS = 32  # whatever the model is served with: requests must run in batches
BATCHES = (1, 2, 5)  # how many requests run at a time when some are run again
NOISE = 1e-3  # of fp32 graphs, as a share of the largest logit: what is further off than that is no noise
ROWS = 16
WIDTH = 1  # one row a request
TINY = 1e-30  # logits that are all alike have no spread
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Forced:
    """Position by position along the checkpoint's greedy continuations.

    `agreement` is the share of `positions` with the checkpoint's likeliest token, of those that are no tie; `ties` the
    share of positions with another token whose logit in torch is as high, within torch's own noise. `texts` says
    whose positions they are: of the user's own texts where there are any, then `bundled_agreement` is that of the
    others. `delta` is the largest difference of a logit, `delta_share` the same as a share of the largest logit, over
    `rows` whole rows of both. `error` is the usual and `worst` the largest error of a row (Tally).
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
    """As Forced, at places of `texts` long texts, whose longest prompt has `longest` tokens."""

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
    """Whole continuations through the engine, all requests together.

    The share of `texts` with the checkpoint's tokens, the share of those that part from it at a tie, and `company`: how
    many of the `alone` texts that were run again, alone and in smaller batches, had other tokens or log-probabilities.
    """

    texts: int
    same: float
    ties: float
    alone: int
    company: int


@dataclass(frozen=True)
class Figures:
    """All of one folder. `noise` is torch's own, in logits; `num_beams` are those of `beams`."""

    forced: Forced
    greedy: Whole
    beams: Whole | None
    num_beams: int
    noise: float
    long: Long | None = None  # a model may take too few tokens for any

    def as_json(self) -> dict[str, Any]:
        """The figures for the manifest; `agreement` stands where every model has it."""
        return {
            "agreement": _short(self.forced.agreement),
            "forced": _shortened(self.forced),
            "greedy": _shortened(self.greedy),
            "beams": None if self.beams is None else {"num_beams": self.num_beams, **_shortened(self.beams)},
            "noise": _short(self.noise),
            "long": None if self.long is None else _shortened(self.long),
        }


def _shortened(value: Any) -> dict[str, Any]:
    return {name: _short(each) if isinstance(each, float) else each for name, each in asdict(value).items()}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def measure(folder: Path, plan: GeneratorPlan, reference: Reference, session: SessionSettings) -> Figures:
    """Run the engine folder on the reference's prompts. Raises the engine's ModelRefused where it can't run here."""
    spec, work = read_spec(folder), reference.work
    with ExitStack() as stack:
        runner = open_rows(spec, SLOTS, session)
        stack.callback(runner.close)
        forced = measure_forced(runner, reference, plan.settings.decoder_start_token_ids)
        long = measure_long(runner, spec, reference)
        stack.pop_all()  # the engine closes it: sessions of BART-large take ONNX Runtime 6 s to open
    # fp32 graphs have a noise of their own, which their logits show.
    trusted = NOISE * reference.largest
    margin = 2 * max(reference.noise, forced.delta if forced.delta <= trusted else 0.0)
    alone = work.effort.alone
    with open_engine(runner, spec, reference, session) as engine:
        greedy = measure_greedy(engine, reference, work.greedy, alone, margin)
        beams = measure_beams(engine, reference, work.beams, alone, margin) if reference.beams else None
    return Figures(forced, greedy, beams, work.beams.num_beams, reference.noise, long)


def open_engine(runner: Runner, spec: EngineSpec, reference: Reference, session: SessionSettings) -> Engine:
    """The engine of a runner with SLOTS rows, with room for all of the reference's prompts."""
    return Engine.of(runner, spec, session, EngineSettings(SLOTS, len(reference.prompts)))


def open_rows(spec: EngineSpec, rows: int, settings: SessionSettings) -> Runner:
    """A runner with rows of one request each, ROWS or more. Raises the engine's ModelRefused if it can't run here."""
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
    """Positions, those with the checkpoint's likeliest token, and those that are a tie; and the errors of rows.

    The error of a row of logits is the norm of the difference as a share of the norm of what is expected. What all
    logits of a row have in common is left out of both. `delta` is the largest difference of any logit.
    """

    positions: int = 0
    same: int = 0
    ties: int = 0
    rows: int = 0
    squares: float = 0.0
    worst: float = 0.0
    delta: float = 0.0

    def count(self, logits: Logits, expected: Positions, position: int, noise: float) -> None:
        """Add one position: logits are a tie where they are as high in torch as its own `noise` can tell."""
        token, best = int(logits.argmax()), int(expected.best[position, 0])
        self.positions += 1
        self.same += token == best
        self.ties += is_tie(expected, position, best, token, 2 * noise)

    def add(self, logits: Logits, expected: Logits) -> None:
        """Count one row."""
        difference, spread = logits - expected, float(np.linalg.norm(expected - expected.mean()))
        error = float(np.linalg.norm(difference - difference.mean())) / max(spread, TINY)
        self.rows += 1
        self.squares += error * error
        self.worst = float(np.maximum(self.worst, error))  # NaN if any is
        self.delta = float(np.maximum(self.delta, np.abs(difference).max()))

    @property
    def agreement(self) -> float:
        """Of the positions that are no tie; 1 where all are."""
        decided = self.positions - self.ties
        return self.same / decided if decided else 1.0

    @property
    def error(self) -> float:
        """The root of the mean square."""
        return float(np.sqrt(self.squares / max(self.rows, 1)))


def is_tie(expected: Positions, position: int, first: int, second: int, margin: float) -> bool:
    """Whether two different tokens have logits in torch that are at most `margin` apart, both among the best."""
    best = expected.best[position].tolist()
    if first == second or first not in best or second not in best:
        return False
    logits = expected.logits[position]
    return bool(abs(logits[best.index(first)] - logits[best.index(second)]) <= margin)


def forced_logits(
    runner: Runner, prompts: Sequence[Ids], continuations: Sequence[Ids], start: Ids
) -> Iterator[tuple[int, int, Logits]]:
    """(prompt, position, logits [vocabulary]) of each position of each continuation; a row is valid until the next.

    `start` is what an encoder-decoder's decoder begins with.
    """
    # Longest first: the rows that are still wanted are always the first ones.
    order = sorted(range(len(prompts)), key=lambda i: (-len(continuations[i]), len(prompts[i])))
    for first in counted(range(0, len(order), ROWS), "batches of continuations"):
        batch = order[first : first + ROWS]
        yield from _batch(runner, batch, prompts, continuations, start)
        runner.release_memory()


def _batch(
    runner: Runner,
    batch: Sequence[int],
    prompts: Sequence[Ids],
    continuations: Sequence[Ids],
    start: Ids,
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
    """Run the prompts in the first rows; the outputs are those of position 0."""
    if isinstance(runner, DecoderRunner):
        return runner.run([Span(prompt, rows=(row,)) for row, prompt in enumerate(prompts)], logits=True)
    for row, source in enumerate(prompts):  # one by one: a batch would need memory for its longest source
        runner.encode([source], [((WIDTH, row),)])
    for token in start:
        runner.partitions[WIDTH].set_next_tokens([(row, token) for row in range(len(prompts))])
        outputs = runner.partitions[WIDTH].step(len(prompts), logits=True)
    return outputs


def measure_long(runner: Runner, spec: EngineSpec, reference: Reference) -> Long | None:
    """Compare every place of the reference's long texts; None where it has none."""
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
    """(place, logits [vocabulary]) of every place of a text; a row is valid until the next.

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
    """Run the first inputs of each row as a prompt. What several have in common of whole chunks is run once."""
    filled = 0
    for row, start in enumerate(text.starts):
        while start - filled > CHUNK:
            runner.run([Span(text.inputs[filled : filled + CHUNK], filled)], logits=False)
            filled += CHUNK
        first = part_start(filled, start)
        yield start, runner.run([Span(text.inputs[first:start], first, rows=(row,))], logits=True)


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
    handles = [engine.submit(request) for request in requests]
    return [handle.result()[0] for handle in counted(handles, "texts")]


def _parting(expected: Ids, actual: Ids) -> int | None:
    """The first place where both have a token, and another one."""
    return next((i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b), None)
