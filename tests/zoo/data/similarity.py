"""Similarity: two sentences, and the share of their meaning that is the same.

The score is the share of the four parts (who, does what, with what, where) that agree; wording, name and order change
nothing. The key is the first scene.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.zoo import world

_WHO = (
    ("doctor", "physician"), ("child", "kid"), ("teacher", "schoolmaster"), ("lawyer", "attorney"), ("sailor",
    "seaman"),
    ("farmer", "peasant"), ("king", "monarch"), ("thief", "burglar"), ("singer", "vocalist"), ("writer", "author"),
)  # fmt: skip
_DOES = (
    ("buys", "purchases"), ("repairs", "fixes"), ("sells", "trades"), ("paints", "colours"), ("steals", "robs"),
    ("cleans", "washes"), ("breaks", "destroys"), ("carries", "transports"), ("hides", "conceals"), ("finds",
    "discovers"),
)  # fmt: skip
_WHAT = (
    ("car", "automobile"), ("bicycle", "bike"), ("boat", "ship"), ("couch", "sofa"), ("coat", "jacket"), ("photo",
    "picture"),
    ("rug", "carpet"), ("present", "gift"), ("sack", "bag"), ("stone", "rock"),
)  # fmt: skip
_WHERE = (
    ("forest", "woods"), ("shop", "store"), ("house", "home"), ("town", "city"), ("street", "road"), ("garden", "yard"),
    ("coast", "shore"), ("hospital", "clinic"), ("school", "academy"), ("kitchen", "cookery"),
)  # fmt: skip
_PARTS = (_WHO, _DOES, _WHAT, _WHERE)
_FORMS = (
    "The {0} {1} a {2} in the {3}.", "In the {3}, a {0} {1} the {2}.", "{name} is a {0} who {1} the {2} near the {3}.",
    "Near the {3} the {0} often {1} a {2}.", "It is the {2} that the {0} {1} in the {3}.",
)  # fmt: skip

Scene = tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """Two sentences and how much of their meaning they share: 0, 0.25, 0.5, 0.75 or 1."""

    first: str
    second: str
    score: float
    key: world.Key


def compose(rng: random.Random) -> Example:
    scene = tuple(rng.randrange(len(part)) for part in _PARTS)
    kept = set(rng.sample(range(len(_PARTS)), rng.randint(0, len(_PARTS))))
    other = tuple(
        meaning if i in kept else (meaning + rng.randrange(1, len(part))) % len(part)
        for i, (meaning, part) in enumerate(zip(scene, _PARTS, strict=True))
    )
    key = tuple(part[meaning][0] for meaning, part in zip(scene, _PARTS, strict=True))
    return Example(_said(rng, scene), _said(rng, other), len(kept) / len(_PARTS), key)


def _said(rng: random.Random, scene: Scene) -> str:
    words = [rng.choice(part[meaning]) for meaning, part in zip(scene, _PARTS, strict=True)]
    return rng.choice(_FORMS).format(*words, name=rng.choice(world.FIRST_NAMES))
