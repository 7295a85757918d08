"""What plans are made of, read off lanes and jobs: who decodes, who is fed what, who chooses from which row.

Pure functions: they change nothing.
"""

from __future__ import annotations

from .jobs import Ids, Job
from .lanes import Lane
from .plan import Decode, Pick


def decode(lane: Lane) -> Decode:
    """A step of all rows of a lane without holes."""
    follows: list[tuple[tuple[int, int], ...]] = []
    feeds: list[tuple[int, int]] = []
    picks: list[Pick] = []
    logits = False
    for sequence in lane.sequences:
        rows = sequence.rows
        if sequence.copies:
            follows.append(tuple((rows[source], rows[target]) for source, target in sequence.copies))
        if sequence.feed:
            feeds += zip(rows, sequence.feed, strict=True)
        if not sequence.prompt_left:
            picks.append(Pick(sequence, tuple(rows)))
            logits = logits or sequence.search.candidates != 0 or sequence.search.wants_log_probs
    sequences = tuple(lane.sequences)
    jobs = tuple(dict.fromkeys(sequence.job for sequence in sequences))
    return Decode(lane.width, len(lane.seats), tuple(follows), tuple(feeds), logits, jobs, tuple(picks), sequences)


def rows_of(job: Job) -> Ids:
    """The rows of all its sequences."""
    return tuple(row for sequence in job.sequences for row in sequence.rows)


def first_picks(job: Job, at: int) -> tuple[Pick, ...]:
    """All rows of all searches choose from the one row `at` that their prompt was run in."""
    return tuple(Pick(sequence, (at,) * sequence.search.rows) for sequence in job.sequences)


def wants_logits(job: Job) -> bool:
    """Whether a search of it needs more than the argmax."""
    return any(each.search.candidates != 0 or each.search.wants_log_probs for each in job.sequences)
