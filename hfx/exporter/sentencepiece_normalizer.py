"""What a SentencePiece model does with a text before it splits it, as a normalizer of the tokenizers library.

A model has a table of sequences of characters. Its library replaces from left to right the longest that the table has.
Precompiled, the step of the tokenizers library for such tables, looks up single characters; of a character with marks
it loses those that the table has not. So sequences are kept apart from each other, their characters are looked up one
by one, and canonical composition (NFC) makes of them what the table has. Of the 225,262 sequences in the table of T5
and XLM-R (nmt_nfkc) that is so but for 21, of scripts that Unicode has had since 2024.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

SPACE = "▁"  # SentencePiece's space
# Non-characters, which no text has: behind a sequence of the table, between its characters, and for these in a text.
BEHIND, BETWEEN, FOREIGN = "\ufdd3", "\ufdd4", "\ufdd5"
# What can be one grapheme with the character before it, beside what the table joins: marks, format characters, the
# line feed of CR LF, Thai and Lao AM, skin tones.
JOINING = r"\p{M}\p{Cf}\n\x{e33}\x{eb3}\x{1f3fb}-\x{1f3ff}"
MOST_NODES = 2_000_000  # of a table; nmt_nfkc has 680,000
CHUNK = 20_000  # nodes


def normalizer(
    spec: Any, before: Sequence[Any] = (), after: Sequence[Any] = (), begins: str = "", has_prefix: bool = True
) -> Any:
    """The normalizer of a NormalizerSpec, with steps before and after its table of characters.

    A text may begin with a character of the pattern `begins`, behind which its first word is. Without `has_prefix`,
    the space before the first word is left to others, and those in the text become SPACE.
    """
    from tokenizers import Regex, normalizers

    first = f"(?:\\A(?!{begins})|(?<=\\A{begins}))" if begins else r"\A"
    prefixed = normalizers.Replace(Regex(f"{first}(?=[\\s\\S])") if has_prefix else " ", SPACE)
    prefix = [prefixed] if spec.add_dummy_prefix else []
    replaced = [*(_table(spec.precompiled_charsmap) if spec.precompiled_charsmap else ()), *after]
    extra = ((r"\A +", ""), (rf"[ {SPACE}]+\z", ""), (" {2,}", " ")) if spec.remove_extra_whitespaces else ()
    trimmed = [normalizers.Replace(Regex(pattern), content) for pattern, content in extra]
    return normalizers.Sequence([*before, *replaced, *trimmed, *prefix])


def one_of(characters: Iterable[str], none: bool = False) -> str:
    """The pattern of one (or with `none` of none) of `characters`."""
    return f"[{'^' * none}" + "".join(f"\\x{{{ord(character):x}}}" for character in sorted(characters)) + "]"


def _table(table: bytes) -> list[Any]:
    """The steps that replace what `table` has."""
    from tokenizers import Regex, normalizers

    inner, longest = _patterns(table)
    joining = f"[{JOINING}{inner}]"
    behind = rf"[\s\S](?={joining})"
    if inner:
        behind = rf"(?=[\s\S]{inner})(?:{longest})|{behind}"
    return [
        normalizers.Replace(Regex(f"[{BEHIND}{BETWEEN}]"), FOREIGN),
        normalizers.Replace(Regex(rf"(?>{behind})\K"), BEHIND),
        normalizers.NFC(),
        normalizers.Replace(Regex(f"(?<=[^{BEHIND}])(?={joining})"), BETWEEN),
        normalizers.Precompiled(table),
        normalizers.Replace(BETWEEN, ""),
        normalizers.NFC(),
        normalizers.Replace(BEHIND, ""),
    ]


@functools.lru_cache(maxsize=1)
def _patterns(table: bytes) -> tuple[str, str]:
    """The patterns of a character within the sequences of `table`, and of the longest sequence from a place on.

    Each beginning of a sequence matches, too.
    """
    sequences = [sequence for sequence in _sequences(table) if len(sequence) > 1]
    root: dict[str, Any] = {}
    for sequence in sequences:
        node = root
        for character in sequence:
            node = node.setdefault(character, {})
    inner = {character for sequence in sequences for character in sequence[1:]}
    return one_of(inner) if inner else "", _choice(root)


def _choice(node: dict[str, Any]) -> str:
    """The pattern of a way down from `node`: characters that lead to equal patterns are in one class."""
    classes: dict[str, list[str]] = {}
    for character, following in node.items():
        classes.setdefault(f"(?:{_choice(following)})?" if following else "", []).append(character)
    return "|".join(one_of(characters) + following for following, characters in classes.items())


def _sequences(table: bytes) -> list[str]:
    """What `table`, a double array over bytes (darts-clone) behind its size, has an entry for. Raises ValueError."""
    import numpy as np

    size = int.from_bytes(table[:4], "little")
    units = np.frombuffer(table, "<u4", size // 4, 4).astype(np.int64)
    labels, offsets = np.append(units & 0x800000FF, -1), (units >> 10) << ((units & 0x200) >> 6)
    places, keys, found, total = offsets[:1], [b""], [], 0
    codes = np.arange(1, 256)
    while keys:
        total += len(keys)
        if total > MOST_NODES:
            raise ValueError("the table of characters is damaged")
        below, longer = [], []
        for start in range(0, len(keys), CHUNK):
            children = places[start : start + CHUNK, None] ^ codes
            parents, used = np.nonzero(labels[np.minimum(children, len(units))] == codes)
            children = children[parents, used]
            names = [keys[start + parent] + bytes((code + 1,)) for parent, code in zip(parents, used, strict=True)]
            found += [names[place] for place in np.nonzero(units[children] & 0x100)[0]]
            longer += names
            below.append(children ^ offsets[children])
        places, keys = np.concatenate(below), longer
    return [key.decode() for key in found]
