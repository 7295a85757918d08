"""Stories: a beginning, how it goes on, and a summary, for models that continue or shorten texts.

Owns one small plot: someone with a feeling goes to a place, gets one to three things there, each for a friend, and
unpacks them at home. What follows is decided by what was said, so a continuation and a summary can be right or wrong.
The key is who, what (the first thing), where.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from tests.zoo import world
from tests.zoo.examples import Split, StoryExample

_MOODS = {"happy": "smiled", "sad": "sighed", "angry": "shouted", "afraid": "shivered"}
_FEELINGS = {"happy": world.HAPPY, "sad": world.SAD, "angry": world.ANGRY, "afraid": world.AFRAID}
_GETS = ("bought", "found", "borrowed", "repaired")
_ASIDES = (
    "It was {day}.", "The streets were quiet.", "The train was late.", "There was a light wind.",
    "{friend} waited at home.",
)  # fmt: skip
_GIFTS = (1, 2, 2, 3)
_FEW_GIFTS = (1, 2)


@dataclass(frozen=True)
class _Gift:
    """A thing, its colour, and who gets it."""

    thing: str
    colour: str
    friend: str


def generate(split: Split, count: int) -> list[StoryExample]:
    """`count` stories of one to three gifts."""
    return world.draw(partial(_compose, _GIFTS), name="stories", split=split, count=count)


def generate_short(split: Split, count: int) -> list[StoryExample]:
    """`count` stories of one or two gifts."""
    return world.draw(partial(_compose, _FEW_GIFTS), name="short stories", split=split, count=count)


def _compose(numbers: tuple[int, ...], rng: random.Random) -> StoryExample:
    count = rng.choice(numbers)
    name, *friends = rng.sample(world.FIRST_NAMES, count + 1)
    things, colours = rng.sample(world.OBJECTS, count), rng.sample(world.COLOURS, count)
    gifts = [_Gift(*gift) for gift in zip(things, colours, friends, strict=True)]
    got, mood, place = rng.choice(_GETS), rng.choice(tuple(_MOODS)), rng.choice(world.PLACES)
    opening = f"{name} was {rng.choice(_FEELINGS[mood])} and went to {place}."
    aside = rng.choice(_ASIDES).format(day=rng.choice(world.DAYS), friend=rng.choice(friends))
    bought = _listed([f"a {gift.colour} {gift.thing} for {gift.friend}" for gift in gifts])
    prompt = f"{opening} {aside} There {name} {got} {bought}. On the way home {name}"
    unpacked = _listed([f"the {gift.colour} {gift.thing} for {gift.friend}" for gift in gifts])
    continuation = f" {_MOODS[mood]}. At home {name} unpacked {unpacked}."
    summary = f"In {place} {name} {got} {_listed([f'the {gift.thing} for {gift.friend}' for gift in gifts])}."
    return StoryExample(prompt, continuation, summary, (name, things[0], place))


def _listed(parts: list[str]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last
