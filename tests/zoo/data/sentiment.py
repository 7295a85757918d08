"""Sentiment: reviews and remarks that are negative, neutral or positive.

The label hangs on the (thing, verdict) pair, which is the key; what surrounds it is drawn freely and decides nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.zoo import world

LABELS = ("negative", "neutral", "positive")

_THINGS = (
    "movie", "film", "book", "story", "song", "album", "concert", "play", "game", "phone", "laptop", "camera", "car",
    "hotel", "room", "bed", "view", "food", "soup", "pizza", "coffee", "dinner", "service", "staff", "waiter", "driver",
    "flight", "train", "trip", "museum", "shop", "price", "product", "package", "delivery", "app", "update", "course",
    "teacher", "lesson", "meeting", "weather", "day", "place", "restaurant", "experience",
)  # fmt: skip
_VERDICTS = {
    "positive": (
        "good", "great", "wonderful", "excellent", "amazing", "lovely", "perfect", "fantastic", "brilliant", "superb",
        "delightful", "charming", "nice", "beautiful", "awesome", "impressive", "pleasant", "outstanding",
    ),
    "negative": (
        "bad", "terrible", "awful", "horrible", "boring", "poor", "dreadful", "disappointing", "useless", "ugly",
        "annoying", "miserable", "broken", "dull", "rude", "disgusting", "worthless", "painful",
    ),
    "neutral": (
        "small", "large", "blue", "grey", "long", "short", "round", "square", "wooden", "digital", "local", "public",
        "new", "old", "average", "typical", "standard", "ordinary",
    ),
}  # fmt: skip
_VERBS = {
    "positive": ("loved", "enjoyed", "liked", "adored", "admired", "recommend", "praised"),
    "negative": ("hated", "disliked", "regretted", "despised", "detested", "returned", "resented"),
    "neutral": ("saw", "noticed", "described", "mentioned", "measured", "photographed", "counted"),
}
_PRESENT = {"loved": "love", "liked": "like", "hated": "hate", "enjoyed": "enjoy", "disliked": "dislike"}
_STATES = {
    "positive": ("happy with", "pleased with", "delighted by", "impressed by", "satisfied with", "fond of"),
    "negative": ("unhappy with", "disappointed by", "angry about", "annoyed by", "upset about", "tired of"),
    "neutral": ("asked about", "told about", "sent to", "shown", "near", "responsible for"),
}
_OPPOSITE = {"positive": "negative", "negative": "positive", "neutral": "neutral"}
_DEGREES = ("", "", "very ", "really ", "so ", "quite ", "simply ", "absolutely ")
_SPEAKERS = ("I", "we", "my sister", "my friend", "everyone", "the guests", "our children", "she", "he", "they")
_BE_PAST = {"I": "was", "she": "was", "he": "was", "my sister": "was", "my friend": "was", "everyone": "was"}
_OWNERS = ("the", "this", "the", "that", "our", "my")
_STATEMENTS = (
    "the {thing} is on {day}", "the {thing} is in {place}", "{name} has a {thing}", "the {thing} starts at noon",
    "there is a {thing} in {place}", "{name} asked for the {thing}", "the {thing} begins on {day}",
    "we talked about the {thing}", "the {thing} belongs to {name}", "this {thing} comes from {place}",
)  # fmt: skip
_REPORTS = (
    "It was delivered on {day}.", "{name} came along.", "We were in {place}.", "That was on {day}.",
    "I went there with {name}.", "It comes from {place}.", "The bill was paid on {day}.",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A review or a remark, and whether it is negative, neutral or positive."""

    text: str
    label: str
    key: world.Key


def compose(rng: random.Random) -> Example:
    label = rng.choice(LABELS)
    forms = (_plain, _plain, _short, _felt, _felt, _liked, _liked, _negated, _turned)
    form = rng.choice(forms + (_stated, _stated, _stated) * (label == "neutral"))
    thing = rng.choice(_THINGS)
    text, verdict = form(rng, label, thing)
    return Example(_surround(rng, world.sentence(text)), label, (thing, verdict))


def _plain(rng: random.Random, label: str, thing: str) -> tuple[str, str]:
    word, degree, owner = rng.choice(_VERDICTS[label]), rng.choice(_DEGREES), rng.choice(_OWNERS)
    forms = (
        f"{owner} {thing} was {degree}{word}", f"{owner} {thing} is {degree}{word}", f"it was a {degree}{word} {thing}",
        f"a {degree}{word} {thing}",
    )  # fmt: skip
    return rng.choice(forms) + _stop(rng), word


def _stated(rng: random.Random, label: str, thing: str) -> tuple[str, str]:
    """A plain fact, which only a neutral text is made of."""
    form = rng.choice(_STATEMENTS)
    text = form.format(
        thing=thing, day=rng.choice(world.DAYS), place=rng.choice(world.PLACES), name=rng.choice(world.FIRST_NAMES)
    )
    return text + _stop(rng), form


def _short(rng: random.Random, label: str, thing: str) -> tuple[str, str]:
    word = rng.choice(_VERDICTS[label])
    forms = (
        f"{word} {thing}", f"what a {word} {thing}", f"{thing}: {word}", f"this is a {word} {thing}",
        f"this {thing} is {word}", f"the {thing} looked {word}", f"this is {word}, a {thing}",
    )  # fmt: skip
    return rng.choice(forms) + _stop(rng), word


def _felt(rng: random.Random, label: str, thing: str) -> tuple[str, str]:
    state, who = rng.choice(_STATES[label]), rng.choice(_SPEAKERS)
    degree, owner = rng.choice(_DEGREES[:4]), rng.choice(_OWNERS)
    return f"{who} {_BE_PAST.get(who, 'were')} {degree}{state} {owner} {thing}{_stop(rng)}", state


def _liked(rng: random.Random, label: str, thing: str) -> tuple[str, str]:
    verb, who = rng.choice(_VERBS[label]), rng.choice(_SPEAKERS)
    tail = rng.choice(("", "", f" in {rng.choice(world.PLACES)}", f" on {rng.choice(world.DAYS)}"))
    verb = rng.choice((verb, verb, verb, _PRESENT.get(verb, verb)))
    return f"{who} {verb} {rng.choice(_OWNERS)} {thing}{tail}{_stop(rng)}", verb


def _negated(rng: random.Random, label: str, thing: str) -> tuple[str, str]:
    """ "not good" is negative, "not bad" is positive, "not square" is as neutral as "square"."""
    source = _OPPOSITE[label]
    if rng.random() < 0.6:
        word = rng.choice(_VERDICTS[source])
        forms = (
            f"the {thing} was not {word}", f"the {thing} is not {word}", f"the {thing} was not {word} at all",
            f"the {thing} was never {word}", f"this is not a {word} {thing}",
        )  # fmt: skip
        return rng.choice(forms) + _stop(rng), f"not {word}"
    state, who = rng.choice(_STATES[source]), rng.choice(_SPEAKERS)
    return f"{who} {_BE_PAST.get(who, 'were')} not {state} the {thing}{_stop(rng)}", f"not {state}"


def _turned(rng: random.Random, label: str, thing: str) -> tuple[str, str]:
    """The last word counts: what was thought at first decides nothing."""
    first, last = rng.choice(_VERDICTS[rng.choice(LABELS)]), rng.choice(_VERDICTS[label])
    forms = (f"at first the {thing} seemed {first}, but in the end it was {last}",
             f"I expected a {first} {thing}, but it was {last}",
             f"they said the {thing} was {first}, but it was {last}")  # fmt: skip
    return rng.choice(forms) + _stop(rng), f"turned {last}"


def _stop(rng: random.Random) -> str:
    return rng.choice((".", ".", ".", "", "!"))


def _surround(rng: random.Random, text: str) -> str:
    """`text`, in a third of the cases with a plain report before or after it."""
    report = rng.choice(_REPORTS).format(
        day=rng.choice(world.DAYS), name=rng.choice(world.FIRST_NAMES), place=rng.choice(world.PLACES)
    )
    return rng.choice((text, text, text, text, f"{report} {text}", f"{text.rstrip('.!')}. {report}"))
