"""A generator's engine as a step of the server, from its own counters on /metrics.

Triton counts only how long it took to hand a request over: the engine decodes the rows of many requests in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hfx.names import STREAM_SUFFIX
from hfx.perf.results.schema import Step

TOKENS, STEPS = "hfx_generated_tokens_total", "hfx_steps_total"
FIRST, FURTHER = "hfx_time_to_first_token_seconds", "hfx_inter_token_seconds"
MILLI = 1000.0


def engine_step(counters: Mapping[str, float], model: str) -> Step | None:
    """The engine of `model` by what its `counters` grew; None where there was no step.

    A row of a step is a token. A request's average: `input` is the time to its first token, in the queue
    and of its prompt; `infer` is that from its first to its last token.
    """
    tokens, steps = counters.get(TOKENS, 0.0), counters.get(STEPS, 0.0)
    requests = counters.get(f"{FIRST}_count", 0.0)
    if not (tokens and steps and requests):
        return None
    return Step(
        model=model + STREAM_SUFFIX,
        requests=round(tokens),
        executions=round(steps),
        batch=tokens / steps,
        queue=0.0,
        input=MILLI * counters.get(f"{FIRST}_sum", 0.0) / requests,
        infer=MILLI * counters.get(f"{FURTHER}_sum", 0.0) / requests,
        output=0.0,
    )


def with_engine(steps: Sequence[Step], counters: Mapping[str, float], model: str) -> tuple[Step, ...]:
    """`steps` with the engine of `model` in the place of its hand-over, and of the relay, whose time contains it."""
    engine = engine_step(counters, model)
    if engine is None:
        return tuple(steps)
    return (*(step for step in steps if step.model not in (model, engine.model)), engine)
