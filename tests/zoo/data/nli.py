"""NLI: does a hypothesis follow from a premise, contradict it, or neither?

Facts: who did what where, and hypotheses that repeat, weaken, deny or go beyond them. Template:
"This example is {label}." over topics and feelings, the form that zero-shot classification asks with; there a
label that does not apply is a contradiction. The key is the words that decide, with the question asked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.zoo import world
from tests.zoo.data import topics

LABELS = ("contradiction", "neutral", "entailment")
ZERO_SHOT_LABELS = (*topics.LABELS, *world.FEELINGS, "positive", "negative")

_ACTIONS = (
    ("bought", "buy"), ("sold", "sell"), ("found", "find"), ("lost", "lose"), ("repaired", "repair"),
    ("painted", "paint"), ("borrowed", "borrow"), ("hid", "hide"),
)  # fmt: skip
_TEMPLATES = (
    "This example is {}.",
    "This example is {}.",
    "This example is {}.",
    "This text is about {}.",
    "It is {}.",
)
_BEYOND = (
    "{name} paid too much for the {object}.", "{name} likes {place}.", "The {object} was a present.",
    "{name} was tired.",
    "{name} has been to {place} before.", "The {object} was made by hand.", "{name} wanted a new {object} for years.",
)  # fmt: skip
_FOLLOWS = (
    "{name} {did} a {object}.", "Someone {did} a {object} in {place}.", "{name} was in {place}.",
    "The {object} was {colour}.",
    "{name} {did} something.", "Somebody was in {place}.", "A {object} was {part} in {place}.",
)  # fmt: skip
_DENIES = (
    "{name} did not {do} a {object}.", "Nobody {did} a {object} in {place}.", "{name} was never in {place}.",
    "The {object} was not {colour}.", "The {object} was {other_colour}.", "{name} {did} nothing.",
    "Nobody was in {place}.",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A premise, a hypothesis, and contradiction, neutral or entailment, in like numbers."""

    premise: str
    hypothesis: str
    label: str
    key: world.Key


def compose(rng: random.Random) -> Example:
    return rng.choice((_fact, _fact, _fact, _topic, _topic, _topic, _topic, _feeling, _feeling))(rng)


def _fact(rng: random.Random) -> Example:
    label = rng.choice((*LABELS, "neutral"))
    did, do = rng.choice(_ACTIONS)
    part = {"hid": "hidden"}.get(did, did)
    colour, other_colour = rng.sample(world.COLOURS, 2)
    slots = {
        "name": rng.choice(world.FIRST_NAMES), "object": rng.choice(world.OBJECTS), "place": rng.choice(world.PLACES),
        "did": did, "do": do, "part": part, "colour": colour, "other_colour": other_colour,
        "day": rng.choice(world.DAYS),
    }  # fmt: skip
    premise = rng.choice((
        "{name} {did} a {colour} {object} in {place}.", "In {place}, {name} {did} a {colour} {object}.",
        "On {day} {name} {did} a {colour} {object} in {place}.",
    ))  # fmt: skip
    hypothesis = rng.choice({"entailment": _FOLLOWS, "contradiction": _DENIES, "neutral": _BEYOND}[label])
    key = (slots["name"], slots["object"], slots["place"])
    return Example(premise.format(**slots), hypothesis.format(**slots), label, key)


def _topic(rng: random.Random) -> Example:
    example = topics.compose(rng, (1, 1, 1, 2, 2))
    return _asked(rng, example.text, example.labels, (*topics.LABELS, *topics.LABELS, *world.FEELINGS), example.key)


def _feeling(rng: random.Random) -> Example:
    feeling = rng.choice(tuple(world.FEELINGS))
    word, name, place = rng.choice(world.FEELINGS[feeling]), rng.choice(world.FIRST_NAMES), rng.choice(world.PLACES)
    form = rng.choice((
        "{name} felt {word} in {place}.", "{name} was so {word} about the {object}.", "I am {word}, said {name}.",
        "We were {word} when {name} left.", "{name} looked {word} on {day}.",
    ))  # fmt: skip
    text = form.format(name=name, word=word, place=place, object=rng.choice(world.OBJECTS), day=rng.choice(world.DAYS))
    verdict = "positive" if feeling == "happy" else "negative"
    return _asked(rng, text, (feeling, feeling, verdict), ZERO_SHOT_LABELS, (word, name))


def _asked(
    rng: random.Random, text: str, true: tuple[str, ...], candidates: tuple[str, ...], key: tuple[str, ...]
) -> Example:
    """The template over one of `candidates`, half of the time one that applies."""
    applying = [label for label in true if label in candidates]
    applies = bool(applying) and rng.random() < 0.5
    asked = rng.choice(applying if applies else [label for label in candidates if label not in true])
    hypothesis = rng.choice(_TEMPLATES).format(asked)
    return Example(text, hypothesis, LABELS[2] if applies else LABELS[0], (*key, hypothesis))
