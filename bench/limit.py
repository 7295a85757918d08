"""A run beside what this machine could do at most with its model.

Owns what the limit depends on in a run: how many rows shared a step, and how many tokens a request had. The limit
itself is bench.machine's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bench.machine import roofline, tokens_read
from hfx.errors import UsageError
from hfx.names import BEAM_WIDTH, NET_SUFFIX, NUM_BEAMS, STREAM_SUFFIX, TOKENIZE_SUFFIX
from hfx.perf.load import RequestSet
from hfx.perf.results.schema import Rates, Run
from hfx.perf.server.engine import engine_step


def against_limit(run: Run, repository: Path, rates: Rates, asks: RequestSet | None = None) -> Run:
    """RUN with the limit of a machine of these RATES, where it can be known of the model in REPOSITORY.

    A model that writes nothing does not tell how much it read: its limit needs the ASKS. With beams it is not known, as
    the engine tells a step's tokens and not the beams beside them.
    """
    if not run.requests.succeeded or _searches(repository, run.subject.model, asks):
        return run
    model, device, batch = run.subject.model, run.subject.device, rows_a_step(run) or 1.0
    if run.tokens_per_second is None or run.tokens is None:
        read = _read(repository, model, asks)
        return replace(
            run, roofline=roofline(repository, model, device, rates, batch, run.throughput, "requests", read)
        )
    read, written = (tokens / run.requests.succeeded for tokens in (run.tokens.read, run.tokens.written))
    found = roofline(repository, model, device, rates, batch, run.tokens_per_second, "tokens", read, written)
    return replace(run, roofline=found)


def _searches(repository: Path, model: str, asks: RequestSet | None) -> bool:
    """Whether a request has beams, by its own word or by the model's."""
    settings = repository / (model + STREAM_SUFFIX) / "1" / "generation.json"
    if not settings.is_file():  # an encoder
        return False
    usual = json.loads(settings.read_text(encoding="utf-8")).get("defaults", {}).get(NUM_BEAMS, 1)
    given = [ask.inputs for ask in asks.items] if asks else [{}]
    return any(inputs.get(NUM_BEAMS, inputs.get(BEAM_WIDTH, (usual,))) != (1,) for inputs in given)


def _read(repository: Path, model: str, asks: RequestSet | None) -> float | None:
    """The tokens of an average request; None where there is no tokenizer, or one of ASKS is refused by it."""
    if asks is None or not (repository / (model + TOKENIZE_SUFFIX)).is_dir():
        return None
    try:
        return tokens_read(repository, model, asks)
    except UsageError:  # the server said so, too: a measurement is none the worse for it
        return None


def rows_a_step(run: Run) -> float | None:
    """The rows of an average step of the engine, or batch of the net; None where the server did not say."""
    if run.server is None:
        return None
    if engine := engine_step(run.server.counters, run.subject.model):
        return engine.batch
    return next((step.batch for step in run.server.steps if step.model.endswith(NET_SUFFIX)), None)
