"""Child: serve rounds of requests with an engine on the CUDA provider, and print what each round made it do.

The arguments are the engine folder, the number of beams, the number of rounds, and the prompts' lengths. The result has
the counts of each round (cuda_host.counted) and the engine's counters.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
from tests.rigs.machine.cuda_host import counted

TOKENS = 12


def rounds(engine: Engine, beams: int, count: int, lengths: list[int]) -> list[Counter[str]]:
    """Return the counts of `count` rounds, in each of which requests of these lengths are open at once."""
    counts = []
    start = (2,) if engine.spec.has_encoder else ()
    settings = Settings(max_tokens=TOKENS, num_beams=beams, decoder_prompt=start)
    for first in range(count):
        counted()
        prompts = [tuple(3 + (first + at) % 40 for at in range(length)) for length in lengths]
        jobs = [engine.submit(Request(prompt, settings)) for prompt in prompts]
        for job in jobs:
            job.result()
        counts.append(counted())
    return counts


def main(folder: str, beams: str, count: str, *lengths: str) -> None:
    """Print the counts of each round."""
    with Engine.open(folder, provider="CUDA", slots=16, max_queue=64) as engine:
        opened = counted()
        made = rounds(engine, int(beams), int(count), [*map(int, lengths)])
        stats = dict(vars(engine.stats()))
        stats["prompt_runs"] = [[*shape, runs] for shape, runs in stats["prompt_runs"].items()]
        result: dict[str, Any] = {"open": opened, "rounds": made, "stats": stats}
        print(json.dumps(result, default=vars))


main(*sys.argv[1:])
