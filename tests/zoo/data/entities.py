"""Entities: sentences with people (PER), places (LOC) and organisations (ORG), of one word or several.

Some names are of two kinds ("Florence lives in Florence"), so that only the context tells; the key is the names of a
sentence.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tests.zoo import world

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")

_BOTH_PERSON_AND_PLACE = ("Florence", "Sydney", "Austin", "Victoria", "Lincoln", "Charlotte")
_PLACE_HEADS = ("North", "South", "New", "Lake", "Port", "Saint", "Upper")
_PLACE_TAILS = ("Haven", "Harbor", "Marsh", "Hill", "Bridge", "Forest", "Valley")
_ORG_HEADS = ("Silver", "United", "Global", "Golden", "Royal", "Central", "Nordic", "Pacific")
_ORG_TAILS = ("Bank", "Airlines", "Motors", "Museum", "University", "Press", "Foods", "Insurance", "Theatre")
_SHORT_ORGS = ("Axion", "Velox", "Norda", "Kestra", "Bluefin", "Orbis")
_FORMS = (
    "[PER] lives in [LOC].", "[PER] works for [ORG].", "[PER] moved from [LOC] to [LOC].",
    "[ORG] opened an office in [LOC].",
    "[PER] met [PER] in [LOC].", "[ORG] hired [PER] last year.", "The director of [ORG], [PER], resigned.",
    "On {day} [PER] flew to [LOC] with [ORG].", "[PER], [PER] and [PER] visited [LOC].",
    "In [LOC], [ORG] sold its shares to [ORG].",
    "A letter from [PER] arrived on {day}.", "The {object} was made in [LOC].",
    "[PER] gave the {colour} {object} to [PER].",
    "The train to [LOC] was late.", "Shares of [ORG] fell on {day}.", "[PER] left [ORG] for [ORG].",
    "Nobody in [LOC] had seen the {colour} {object}.", "The {object} was {colour} and broken.",
    "\"We trust [PER],\" said [ORG].",
    "Yesterday [PER] called.", "The streets of [LOC] were empty when [PER] came home.",
    "[ORG] and [ORG] merged in [LOC].",
    "Why did [PER] never return to [LOC]?", "[PER] bought a {object} from [ORG].",
)  # fmt: skip
_SLOT = re.compile(r"\[(PER|LOC|ORG)\]")


@dataclass(frozen=True)
class Entity:
    """A named span: `text == sentence[start:end]`, `label` is PER, LOC or ORG."""

    text: str
    label: str
    start: int
    end: int


@dataclass(frozen=True)
class Example:
    """A sentence and the entities in it, in order, none overlapping; a few have none."""

    text: str
    entities: tuple[Entity, ...]
    key: world.Key


def compose(rng: random.Random) -> Example:
    form = rng.choice(_FORMS).format(
        day=rng.choice(world.DAYS), object=rng.choice(world.OBJECTS), colour=rng.choice(world.COLOURS)
    )
    text, entities, end = "", [], 0
    for slot in _SLOT.finditer(form):
        text += form[end : slot.start()]
        name = _NAMERS[slot.group(1)](rng)
        entities.append(Entity(name, slot.group(1), len(text), len(text) + len(name)))
        text, end = text + name, slot.end()
    text += form[end:]
    return Example(text, tuple(entities), tuple(e.text for e in entities) or (text,))


def _person(rng: random.Random) -> str:
    first = rng.choice(world.FIRST_NAMES + _BOTH_PERSON_AND_PLACE)
    return rng.choice((first, f"{first} {rng.choice(world.SURNAMES)}", f"{first[0]}. {rng.choice(world.SURNAMES)}"))


def _place(rng: random.Random) -> str:
    two_words = f"{rng.choice(_PLACE_HEADS)} {rng.choice(_PLACE_TAILS)}"
    return rng.choice((rng.choice(world.PLACES), rng.choice(_BOTH_PERSON_AND_PLACE), two_words))


def _organisation(rng: random.Random) -> str:
    head, tail = rng.choice(_ORG_HEADS), rng.choice(_ORG_TAILS)
    forms = (
        f"{head} {tail}", f"{rng.choice(world.PLACES)} {tail}", f"{head} {tail} of {rng.choice(world.PLACES)}",
        rng.choice(_SHORT_ORGS),
    )  # fmt: skip
    return rng.choice(forms)


_NAMERS = {"PER": _person, "LOC": _place, "ORG": _organisation}
