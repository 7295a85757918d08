"""Stories: a beginning, how it goes on, and a summary, for models that continue or shorten texts.

Someone with a feeling goes to a place, gets one to three things there, each for a friend, and unpacks them at home.
What follows is decided by what was said, so a continuation and a summary can be right or wrong. The key is who,
what (the first thing), where.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.zoo import world

_MOODS = {"happy": "smiled", "sad": "sighed", "angry": "shouted", "afraid": "shivered"}
_GETS = ("bought", "found", "borrowed", "repaired")
_ASIDES = (
    "It was {day}.", "The streets were quiet.", "The train was late.", "There was a light wind.",
    "{friend} waited at home.",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """The beginning of a story, how it goes on, and a summary of the whole."""

    prompt: str
    continuation: str
    summary: str
    key: world.Key


def compose(rng: random.Random, gift_counts: tuple[int, ...] = (1, 2, 2, 3)) -> Example:
    """A story of one to three gifts."""
    count = rng.choice(gift_counts)
    name, *friends = rng.sample(world.FIRST_NAMES, count + 1)
    things, colours = rng.sample(world.OBJECTS, count), rng.sample(world.COLOURS, count)
    gifts = list(zip(things, colours, friends, strict=True))
    got, mood, place = rng.choice(_GETS), rng.choice(tuple(_MOODS)), rng.choice(world.PLACES)
    opening = f"{name} was {rng.choice(world.FEELINGS[mood])} and went to {place}."
    aside = rng.choice(_ASIDES).format(day=rng.choice(world.DAYS), friend=rng.choice(friends))
    bought = _listed([f"a {colour} {thing} for {friend}" for thing, colour, friend in gifts])
    prompt = f"{opening} {aside} There {name} {got} {bought}. On the way home {name}"
    unpacked = _listed([f"the {colour} {thing} for {friend}" for thing, colour, friend in gifts])
    continuation = f" {_MOODS[mood]}. At home {name} unpacked {unpacked}."
    given = _listed([f"the {thing} for {friend}" for thing, _, friend in gifts])
    summary = f"In {place} {name} {got} {given}."
    return Example(prompt, continuation, summary, (name, things[0], place))


def compose_short(rng: random.Random) -> Example:
    """A story of one or two gifts."""
    return compose(rng, (1, 2))


def _listed(parts: list[str]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last
