"""Answers: questions about one fact in a context of several, some of the contexts far longer than a window.

In a context no two facts share a person or an object, so a question has one answer. The key is the
asked fact: who, what, where.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.zoo import world

_ACTIONS = (
    ("bought", "buy"),
    ("sold", "sell"),
    ("found", "find"),
    ("lost", "lose"),
    ("painted", "paint"),
    ("hid", "hide"),
)
_FILLERS = (
    "The weather was mild.", "Nothing else happened that day.", "The streets were quiet.", "Everyone went home late.",
    "The shops were still open.", "A dog barked.", "Music came from a window.", "It was a long week.",
)  # fmt: skip
_LONG_ONE_IN = 8


_TELLINGS = (
    "{name} {did} the {colour} {object} in {place} on {day}.",
    "On {day} {name} {did} the {colour} {object} in {place}.",
    "In {place}, {name} {did} the {colour} {object} on {day}.",
)  # fmt: skip
_QUESTIONS = (
    ("Where did {name} {do} the {object}?", "{place}"), ("Where was {name}?", "{place}"),
    ("What did {name} {do}?", "the {colour} {object}"), ("What did {name} {do} on {day}?", "the {colour} {object}"),
    ("Who {did} the {object}?", "{name}"), ("Who had the {object}?", "{name}"),
    ("When did {name} {do} the {object}?", "{day}"), ("On which day was {name} in {place}?", "{day}"),
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A question and a context; `answer == context[start:start + len(answer)]`, at a character."""

    question: str
    context: str
    answer: str
    start: int
    key: world.Key


def compose(rng: random.Random) -> Example:
    """One in eight has a context of several hundred tokens."""
    is_long = rng.randrange(_LONG_ONE_IN) == 0
    facts = _facts(rng, rng.randint(10, 15) if is_long else rng.randint(1, 4))
    asked = rng.choice(facts)
    question, answer = (part.format(**asked) for part in rng.choice(_QUESTIONS))
    sentences = [rng.choice(_TELLINGS).format(**fact) for fact in facts]
    marked = sentences[facts.index(asked)]
    sentences += [rng.choice(_FILLERS) for _ in range(rng.randint(15, 30) if is_long else rng.randint(0, 2))]
    rng.shuffle(sentences)
    context = " ".join(sentences)
    start = context.index(marked) + marked.index(answer)
    return Example(question, context, answer, start, (asked["name"], asked["object"], asked["place"]))


def _facts(rng: random.Random, count: int) -> list[dict[str, str]]:
    names, objects = rng.sample(world.FIRST_NAMES, count), rng.sample(world.OBJECTS, count)
    facts = []
    for name, thing in zip(names, objects, strict=True):
        did, do = rng.choice(_ACTIONS)
        colour, place, day = rng.choice(world.COLOURS), rng.choice(world.PLACES), rng.choice(world.DAYS)
        facts.append(
            {"name": name, "did": did, "do": do, "colour": colour, "object": thing, "place": place, "day": day}
        )
    return facts
