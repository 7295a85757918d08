"""Which prompts are run together: those of similar length where they are padded, else as they come.

Owns this one choice; knows nothing of what is done with the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from .jobs import Job

# The longest may be so many times as long as the shortest; padding of few tokens costs nothing beside reading weights.
MOST_UNLIKE = 1.5
FEW_TOKENS = 128


def similar(jobs: Sequence[Job], limit: int) -> list[Job]:
    """The first of `jobs`, and those after it that make a batch of at most `limit` padded tokens with it."""
    chosen = [jobs[0]]
    shortest = longest = len(jobs[0].prompt)
    for job in jobs[1:]:
        low, high = min(shortest, len(job.prompt)), max(longest, len(job.prompt))
        padded = high * (len(chosen) + 1)
        if padded <= limit and (padded <= FEW_TOKENS or high <= MOST_UNLIKE * low):
            chosen.append(job)
            shortest, longest = low, high
    return chosen


def together(jobs: Sequence[Job], limit: int) -> list[Job]:
    """The first of `jobs`, and those after it up to `limit` tokens in all: nothing is padded."""
    chosen, tokens = [jobs[0]], len(jobs[0].prompt)
    for job in jobs[1:]:
        tokens += len(job.prompt)
        if tokens > limit:
            break
        chosen.append(job)
    return chosen
