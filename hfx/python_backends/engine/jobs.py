"""A request inside the engine: its sequences, guesses at their next tokens, and the rows that they have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .beam import BeamSearch
from .checks import Ids
from .plan import Outcome, Pairs, Run
from .request import Request
from .sampling import SingleSearch
from .search import Search, Step

if TYPE_CHECKING:
    from .handle import Handle

# Of guesses: see Drafter.
NGRAM = 3  # tokens that a place must have in common with the sequence's end
SHORTEST = 3  # tokens of a guess; twice as many after each that was right
LONGEST_PAUSE = 64  # steps without a guess; twice as many after each that was wrong from its first token


class Drafter:
    """Prompt lookup: guesses at what a sequence goes on with, from where its last tokens stood before.

    Summaries, answers and code copy from their prompt. A guess changes no answer, as each token is chosen from the
    model's own scores (plan.Pick); where it is right, one run of the model gives several tokens. With one guessed token
    a run takes about 1.1 times as long as a step, with 7 1.2 times, with 15 1.7 to 2.1 times (distilgpt2, Flan-T5-base
    and BART-large in int8, docs/benchmarks-generation.md).

    A guess has at most `most` tokens. At most `max_tokens` follow `prompt`.
    """

    def __init__(self, prompt: Ids, most: int, max_tokens: int) -> None:
        self._tokens = list(prompt)
        self._end = len(prompt) + max_tokens
        self._most = most
        self._length = min(SHORTEST, most)
        self._guessed = 0
        self._pause, self._next_pause = 0, 1
        # The position that the sequence is taken to copy next; it stays beside it through a few other tokens.
        self._place: int | None = None
        self._after: dict[Ids, int] = {}  # n-gram -> the last position behind it, of those up to `_indexed`
        self._indexed = NGRAM - 1

    def guess(self) -> Ids:
        """The tokens that may be next, none where there is no reason for a guess."""
        if self._pause:
            self._pause -= 1
            return ()
        tokens, end = self._tokens, len(self._tokens)
        place = self._place
        if place is None or tokens[place - 1] != tokens[-1]:
            place = self._look_up()
            if place is None:
                return ()
            self._place = place
        # A run gives a token more than were guessed.
        guess = tuple(tokens[place : place + min(self._length, self._end - end - 1)])
        self._guessed = len(guess)
        return guess

    def take(self, outcome: Outcome) -> None:
        """What was chosen after the last guess."""
        chosen = outcome.earlier + (outcome.result.emitted if isinstance(outcome.result, Step) else ())
        before = len(self._tokens)
        for event in chosen:
            self._tokens += event.ids
        if self._place is not None:
            self._place += len(self._tokens) - before
        guessed, self._guessed = self._guessed, 0
        if not guessed:
            return
        if outcome.accepted:
            right = outcome.accepted == guessed
            self._length = min(2 * self._length if right else max(outcome.accepted, SHORTEST), self._most)
            self._next_pause = 1
        else:
            self._length = min(SHORTEST, self._most)
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)

    def _look_up(self) -> int | None:
        """The last place with the n-gram that the tokens end with; those since the last call are indexed first."""
        tokens, end = self._tokens, len(self._tokens)
        for at in range(self._indexed + 1, end):
            self._after[tuple(tokens[at - NGRAM : at])] = at
        self._indexed = max(self._indexed, end - 1)
        return self._after.get(tuple(tokens[-NGRAM:]))


@dataclass(eq=False)
class Sequence:
    """One search in the engine.

    `rows` are its rows in the partition of `width`, one for each row of the search, and empty until it has a place.
    `length` counts the positions in its cache. `feed` is what its rows must be fed with, empty where the argmax of the
    last run, which is in place already, is right. `copies` are to be made before the next run: (source, target) as
    indices of `rows`. `prompt_left` is what the decoder is still to be fed with before the first choice
    (encoder-decoders). `drafter` guesses its next tokens, where guesses can be verified.
    """

    search: Search
    job: Job = field(repr=False)
    width: int
    rows: list[int] = field(default_factory=list)
    length: int = 0
    feed: Ids = ()
    copies: Pairs = ()
    prompt_left: Ids = ()
    chosen: bool = False
    over: bool = False
    drafter: Drafter | None = None

    @property
    def wants_logits(self) -> bool:
        """Whether its next choice needs more than the argmax."""
        return self.search.candidates != 0 or self.search.wants_log_probs

    def follow(self, parents: Ids) -> None:
        """Row i of the search goes on from what its row `parents[i]` held.

        One child of each parent takes over the parent's row as it is; only the others are copied, to rows of parents
        without children. So nothing that is copied from is copied to.
        """
        heirs: dict[int, int] = {}
        for child, parent in enumerate(parents):
            heirs.setdefault(parent, child)
        childless = [row for parent, row in enumerate(self.rows) if parent not in heirs]
        self.copies = tuple((heirs[parent], child) for child, parent in enumerate(parents) if heirs[parent] != child)
        self.rows = [
            self.rows[parent] if heirs[parent] == child else childless.pop() for child, parent in enumerate(parents)
        ]


@dataclass(eq=False)
class Job:
    """A request and its sequences. `prompt` is what is prefilled, or encoded; `arrival` numbers the requests.

    `batch` is the number of the one that runs it (fair_scheduler.py); `admitted` jobs have their rows reserved;
    `prefilled` positions of the prompt have been run. `submitted`, `began`, when the prompt was first run, and
    `last_token` (both 0 before) are in seconds of `time.monotonic`.
    """

    request: Request
    rows: int
    prompt: Ids
    sequences: tuple[Sequence, ...] = ()
    arrival: int = 0
    batch: int = 0
    admitted: bool = False
    prefilled: int = 0
    over: bool = False
    submitted: float = 0.0
    began: float = 0.0
    last_token: float = 0.0
    handle: Handle = field(init=False, repr=False)

    def close(self) -> None:
        """Release the sequences, which refer to the job: so what is over is freed without the garbage collector."""
        self.sequences = ()

    @property
    def all_rows(self) -> Ids:
        """The rows of all its sequences."""
        return tuple(row for sequence in self.sequences for row in sequence.rows)

    @property
    def unfinished(self) -> list[Sequence]:
        """The sequences that go on."""
        return [sequence for sequence in self.sequences if not sequence.over]


def new_job(request: Request, has_encoder: bool) -> Job:
    """The job of a request that was checked. With an encoder, its partition is as wide as it has beams; else 1."""
    searches = new_searches(request)
    rows = sum(search.rows for search in searches)
    job = Job(request, rows, request.prompt if has_encoder else tuple(searches[0].prompt))
    job.sequences = tuple(Sequence(search, job, search.rows if has_encoder else 1) for search in searches)
    return job


def new_searches(request: Request) -> list[Search]:
    """One search for all beams, else one for each sequence to return."""
    if request.settings.num_beams > 1:
        return [BeamSearch(request)]
    return [SingleSearch(request, index) for index in range(request.settings.num_return_sequences)]


class Partition:
    """Rows for searches of `width` beams: at most `capacity` groups of them; row = group * width + beam.

    `groups[group]` is the sequence that has the group, None in a hole; the last group is never a hole.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self.width = width
        self.capacity = capacity
        self.groups: list[Sequence | None] = []
        self.holes: set[int] = set()
        self.sequences: dict[Sequence, None] = {}

    def take(self, sequence: Sequence, groups: int) -> None:
        """Give `sequence` so many groups more: holes first, then new ones."""
        for _ in range(groups):
            group = self._free_group()
            self.groups[group] = sequence
            sequence.rows += range(group * self.width, (group + 1) * self.width)
        self.sequences[sequence] = None

    def leave(self, sequence: Sequence) -> None:
        """Free the rows of `sequence`."""
        del self.sequences[sequence]
        for group in {row // self.width for row in sequence.rows}:
            self.groups[group] = None
            self.holes.add(group)
        sequence.rows = []
        self._trim()

    def compact(self) -> tuple[Pairs, tuple[Sequence, ...]]:
        """Fill every hole with the last group; the moves, as (source, target), and the sequences that moved."""
        moves = []
        moved: dict[Sequence, None] = {}
        while self.holes:
            source, target = len(self.groups) - 1, min(self.holes)
            sequence = self.groups.pop()
            assert sequence is not None
            self.holes.remove(target)
            self.groups[target] = sequence
            shift = (target - source) * self.width
            sequence.rows = [row + shift if row // self.width == source else row for row in sequence.rows]
            moves.append((source, target))
            moved[sequence] = None
            self._trim()
        return tuple(moves), tuple(moved)

    def step(self) -> Run:
        """The next token of all rows, where there are no holes."""
        follows: list[Pairs] = []
        feeds: list[tuple[int, int]] = []
        for sequence in self.sequences:
            rows = sequence.rows
            if sequence.copies:
                follows.append(tuple((rows[source], rows[target]) for source, target in sequence.copies))
            if sequence.feed:
                feeds += zip(rows, sequence.feed, strict=True)
        return Run(
            self.width, len(self.groups), tuple(follows), tuple(feeds), tuple(self.sequences), draft=self._draft()
        )

    def _draft(self) -> Ids:
        """A guess at what follows, where there is one row only: rows beside each other fill a run better."""
        if len(self.groups) != 1 or self.width != 1:
            return ()
        (sequence,) = self.sequences
        return sequence.drafter.guess() if sequence.drafter is not None and not sequence.prompt_left else ()

    def _free_group(self) -> int:
        if self.holes:
            group = min(self.holes)
            self.holes.remove(group)
            return group
        assert len(self.groups) < self.capacity, "more groups are taken than were reserved"
        self.groups.append(None)
        return len(self.groups) - 1

    def _trim(self) -> None:
        while self.groups and self.groups[-1] is None:
            self.groups.pop()
            self.holes.remove(len(self.groups))
