"""Similarity: two sentences, and the share of their meaning that is the same.

Owns the meanings (who, does what, with what, where), their synonyms and the two ways to say a whole scene. The score is
the share of the four parts that agree; wording, name and order change nothing. The key is the first scene.
"""

from __future__ import annotations

import random

from tests.zoo import world
from tests.zoo.examples import SimilarExample, Split

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


def generate(split: Split, count: int) -> list[SimilarExample]:
    """`count` pairs, the scores 0, 0.25, 0.5, 0.75 and 1 about equally often."""
    return world.draw(_compose, name="similarity", split=split, count=count)


def _compose(rng: random.Random) -> SimilarExample:
    scene = tuple(rng.randrange(len(part)) for part in _PARTS)
    kept = set(rng.sample(range(len(_PARTS)), rng.randint(0, len(_PARTS))))
    other = tuple(
        meaning if i in kept else (meaning + rng.randrange(1, len(part))) % len(part)
        for i, (meaning, part) in enumerate(zip(scene, _PARTS, strict=True))
    )
    key = tuple(part[meaning][0] for meaning, part in zip(scene, _PARTS, strict=True))
    return SimilarExample(_said(rng, scene), _said(rng, other), len(kept) / len(_PARTS), key)


def _said(rng: random.Random, scene: Scene) -> str:
    words = [rng.choice(part[meaning]) for meaning, part in zip(scene, _PARTS, strict=True)]
    return rng.choice(_FORMS).format(*words, name=rng.choice(world.FIRST_NAMES))
