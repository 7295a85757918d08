"""The texts that the demo's checkpoints learn from: labelled reviews, and short stories, made of a few words."""

from __future__ import annotations

import random

LABELS = ("negative", "positive")
THINGS = (
    "film", "book", "concert", "hotel", "room", "view", "soup", "pizza", "coffee", "dinner", "service", "waiter",
    "train", "trip", "museum", "shop", "phone", "camera", "lesson", "teacher", "restaurant", "song", "play", "game",
)  # fmt: skip
WORDS = {
    "positive": (
        "good", "great", "wonderful", "excellent", "lovely", "perfect", "brilliant", "delightful", "charming",
        "beautiful", "impressive", "pleasant",
    ),
    "negative": (
        "bad", "terrible", "awful", "horrible", "boring", "poor", "disappointing", "useless", "ugly", "annoying",
        "dull", "rude",
    ),
}  # fmt: skip
VERBS = {"positive": ("loved", "enjoyed", "liked", "admired"), "negative": ("hated", "disliked", "regretted", "left")}
REVIEWS = (
    "The {thing} was {word}.", "This {thing} is really {word}!", "What a {word} {thing}!", "It was a {word} {thing}.",
    "We {verb} the {thing}.", "I {verb} this {thing}, it was so {word}.", "A {word} {thing}.",
    "At first I had doubts, but the {thing} was {word}.", "The {thing} was not {opposite}, it was {word}.",
)  # fmt: skip

NAMES = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Grace", "Henry", "Irina", "Oscar", "Paula", "Simon")
PLACES = ("Oslo", "Paris", "Cairo", "Lima", "Delhi", "Berlin", "Madrid", "Kyoto", "Vienna", "Athens")
OBJECTS = ("lamp", "chair", "bicycle", "clock", "kettle", "carpet", "painting", "camera", "coat", "drum")
COLOURS = ("red", "blue", "green", "yellow", "black", "white")
WEATHER = ("It was raining.", "The sun was shining.", "The streets were quiet.", "There was a light wind.")
STORY = (
    "{name} went to {place}. {weather} There {name} bought a {colour} {thing} for {friend}. "
    "On the way home it got dark. {friend} opened the door and smiled. The {colour} {thing} was just right."
)


def reviews(count: int, seed: int) -> list[tuple[str, str]]:
    """`count` reviews with their labels."""
    rng = random.Random(seed)
    return [_review(rng) for _ in range(count)]


def stories(count: int, seed: int) -> list[str]:
    """`count` stories of five sentences."""
    rng = random.Random(seed)
    return [_story(rng) for _ in range(count)]


def _review(rng: random.Random) -> tuple[str, str]:
    label = rng.choice(LABELS)
    other = LABELS[1 - LABELS.index(label)]
    text = rng.choice(REVIEWS).format(
        thing=rng.choice(THINGS),
        word=rng.choice(WORDS[label]),
        verb=rng.choice(VERBS[label]),
        opposite=rng.choice(WORDS[other]),
    )
    return text, label


def _story(rng: random.Random) -> str:
    name, friend = rng.sample(NAMES, 2)
    return STORY.format(
        name=name,
        friend=friend,
        place=rng.choice(PLACES),
        weather=rng.choice(WEATHER),
        colour=rng.choice(COLOURS),
        thing=rng.choice(OBJECTS),
    )
