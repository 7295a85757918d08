"""How the text of a token depends on its neighbours, read from the "decoder" part of a tokenizer.json.

Owns what is known of the tokenizers library's decoders (0.21 to 0.22); decodes no sequence itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union

# bytes: tokens are bytes, and the text is their UTF-8. windows: a token's text depends on whether it is the first one,
# and on the token before it at most; only a run of <0x..> tokens depends on what follows. whole: nothing is known.
DecoderKind = Literal["bytes", "windows", "whole"]

Step = Mapping[str, Any]
Decoder = Union[Step, None]

# Decoders that look at one token at a time (Metaspace and WordPiece also at whether it is the first, BPEDecoder the
# last: the space that it then leaves out is taken for the beginning of the next token's text).
_TOKENWISE = ("Replace", "ByteFallback", "Strip", "Metaspace", "WordPiece", "BPEDecoder")


def decoder_kind(decoder: Decoder) -> DecoderKind:
    """The kind of a tokenizer.json's decoder; without one (None), tokens are joined by spaces."""
    steps = decoder_steps(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return "bytes"
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    if all(kind in _TOKENWISE for kind in kinds[:fused]) and all(map(_reads_the_beginning, steps[fused + 1 :])):
        return "windows"
    return "whole"


def decoder_steps(decoder: Decoder) -> Sequence[Step]:
    """The decoders that are applied one after another."""
    if decoder is None:
        return ()
    if decoder["type"] == "Sequence":
        return [step for each in decoder["decoders"] for step in decoder_steps(each)]
    return (decoder,)


def is_byte_token(token: str) -> bool:
    """Whether ByteFallback takes a token for a byte (<0x0A>)."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def token_bytes(token: str) -> bytes:
    """The bytes that the ByteLevel decoder takes a token for; one with other characters (an added token) is UTF-8."""
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode()


def _reads_the_beginning(step: Step) -> bool:
    """Whether a decoder of the fused text changes nothing but its beginning."""
    return bool(step["type"] == "Fuse" or (step["type"] == "Strip" and step["stop"] == 0))


def _byte_of() -> dict[str, int]:
    """GPT-2's table: printable bytes of Latin-1 stand for themselves, the others for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_of()
