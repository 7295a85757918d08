"""Build the normalizer of a SentencePiece model from steps of the tokenizers library.

A model has a table of character sequences. The sentencepiece library replaces, from left to right, the longest sequence
that the table has. Precompiled, the tokenizers library's step for such tables, looks up single characters; if the table
lacks a character with marks, it loses the marks. So this module separates sequences from each other, looks up their
characters one by one, and uses canonical composition (NFC) to get what the table has for the sequence. For the 225,262
sequences in the table of T5 and XLM-R (nmt_nfkc), the result is the same except for 21, of scripts that Unicode has had
since 2024.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

SPACE = "▁"  # SentencePiece's space
# Non-characters, which texts don't have. They stand behind a sequence of the table, between its characters, and in the
# place of the first two in a text.
BEHIND, BETWEEN, FOREIGN = "\ufdd3", "\ufdd4", "\ufdd5"
# Characters that may be one grapheme with the character before them, in addition to those that the table joins: marks,
# format characters, the line feed of CR LF, Thai and Lao AM, skin tones.
JOINING = r"\p{M}\p{Cf}\n\x{e33}\x{eb3}\x{1f3fb}-\x{1f3ff}"
MOST_NODES = 2_000_000  # of a table; nmt_nfkc has 680,000
CHUNK = 20_000  # nodes


def normalizer(
    spec: Any, before: Sequence[Any] = (), after: Sequence[Any] = (), begins: str = "", has_prefix: bool = True
) -> Any:
    """Return the normalizer of a NormalizerSpec, with steps `before` and `after` its table of characters.

    A text may begin with a character of the pattern `begins`, which the first word follows. Without `has_prefix`, the
    caller puts the space before the first word, and the spaces in the text become SPACE.
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
    """Return the pattern of a character that is one of `characters` (with `none`: that is none of them)."""
    return f"[{'^' * none}" + "".join(f"\\x{{{ord(character):x}}}" for character in sorted(characters)) + "]"


def _table(table: bytes) -> list[Any]:
    """Return the steps that replace the sequences in `table`."""
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
    """Return the pattern of characters inside the sequences of `table`, and that of the longest sequence at a place.

    The second pattern also matches the beginnings of sequences.
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
    """Return the pattern of all paths down from `node`: characters that lead to equal patterns are in one class."""
    classes: dict[str, list[str]] = {}
    for character, following in node.items():
        classes.setdefault(f"(?:{_choice(following)})?" if following else "", []).append(character)
    return "|".join(one_of(characters) + following for following, characters in classes.items())


def _sequences(table: bytes) -> list[str]:
    """Return the sequences in `table`, which is a size and then a double array over bytes (darts-clone).

    Raises ValueError if the table is damaged.
    """
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
