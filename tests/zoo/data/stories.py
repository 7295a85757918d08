"""Stories: a beginning, how it goes on, and a summary, for models that continue or shorten texts.

Owns one small plot: someone with a feeling goes to a place, gets a thing there, gives it to a friend, who is glad or
not. What follows is decided by what was said, so a continuation and a summary can be right or wrong. The key is who,
what, where.
"""

from __future__ import annotations

import random

from tests.zoo import world
from tests.zoo.examples import Split, StoryExample

_MOODS = {"happy": "smiled", "sad": "sighed", "angry": "shouted", "afraid": "shivered"}
_FEELINGS = {"happy": world.HAPPY, "sad": world.SAD, "angry": world.ANGRY, "afraid": world.AFRAID}
_GETS = ("bought", "found", "borrowed", "repaired")
_ASIDES = (
    "It was {day}.", "The streets were quiet.", "The train was late.", "There was a light wind.",
    "{friend} waited at home.",
)  # fmt: skip


def generate(split: Split, count: int) -> list[StoryExample]:
    """`count` stories."""
    return world.draw(_compose, name="stories", split=split, count=count)


def _compose(rng: random.Random) -> StoryExample:
    name, friend = rng.sample(world.FIRST_NAMES, 2)
    mood, gets = rng.choice(tuple(_MOODS)), rng.choice(_GETS)
    thing, place, day = rng.choice(world.OBJECTS), rng.choice(world.PLACES), rng.choice(world.DAYS)
    colour, feeling = rng.choice(world.COLOURS), rng.choice(_FEELINGS[mood])
    aside = rng.choice(_ASIDES).format(day=day, friend=friend)
    prompt = (
        f"{name} was {feeling} and went to {place}. {aside} There {name} {gets} a {colour} {thing} for {friend}. "
        f"On the way home {name}"
    )
    continuation = f" {_MOODS[mood]}. At home {name} gave the {colour} {thing} to {friend}. {friend} said thank you."
    summary = f"{name} {gets} a {thing} in {place} and gave it to {friend}."
    return StoryExample(prompt, continuation, summary, (name, thing, place))
