"""Header blocks of HTTP/2 (HPACK, RFC 7541) as far as gRPC needs them: literals out, literals in.

Nothing is ever put into the table, ours or theirs (its size is set to 0). Huffman codes are not read: servers built on
gRPC's own core send none in what is looked for here; whoever meets one is told, and asks by another way.
"""

from __future__ import annotations

from collections.abc import Iterable

POST, HTTP = b"\x83", b"\x86"  # of the static table
AUTHORITY, PATH, CONTENT_TYPE = 1, 4, 31  # names of it
INDEXED, INDEXING, RESIZE = 0x80, 0x40, 0x20


class Unreadable(ValueError):
    """A block with a Huffman code where a value is needed, or a damaged one."""


def request_block(path: str, authority: str, others: Iterable[tuple[str, str]]) -> bytes:
    """The headers of a gRPC call."""
    known = ((PATH, path), (AUTHORITY, authority), (CONTENT_TYPE, "application/grpc"))
    named = b"".join(_integer(index, 4) + _string(value.encode()) for index, value in known)
    literal = b"".join(b"\0" + _string(n.encode()) + _string(v.encode()) for n, v in (("te", "trailers"), *others))
    return POST + HTTP + named + literal


def fields(block: bytes) -> dict[bytes, bytes]:
    """The literal fields of a block with literal names. Raises Unreadable."""
    found: dict[bytes, bytes] = {}
    at = 0
    try:
        while at < len(block):
            kind = block[at]
            if kind & INDEXED:
                _, at = _read_integer(block, at, 7)
            elif not kind & INDEXING and kind & RESIZE:
                _, at = _read_integer(block, at, 5)
            else:
                index, at = _read_integer(block, at, 6 if kind & INDEXING else 4)
                name, at = _read_string(block, at) if not index else (b"", at)
                value, at = _read_string(block, at)
                if name is None:
                    raise Unreadable("a name is Huffman-coded")
                if name.startswith(b"grpc-") and value is None:
                    raise Unreadable(f"{name!r} is Huffman-coded")
                found[name] = value or b""
    except IndexError:
        raise Unreadable("it is cut off") from None
    return found


def _integer(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    value -= most
    rest = bytearray([most])
    while value >= 0x80:
        rest.append(value & 0x7F | 0x80)
        value >>= 7
    rest.append(value)
    return bytes(rest)


def _string(content: bytes) -> bytes:
    return _integer(len(content), 7) + content


def _read_integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value, at = block[at] & most, at + 1
    if value < most:
        return value, at
    shift = 0
    while True:
        value += (block[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not block[at - 1] & 0x80:
            return value, at
        if shift > 28:
            raise Unreadable("a number has no end")


def _read_string(block: bytes, at: int) -> tuple[bytes | None, int]:
    """The string and where it ends; None for a Huffman code."""
    coded = bool(block[at] & 0x80)
    length, at = _read_integer(block, at, 7)
    if at + length > len(block):
        raise Unreadable("it is cut off")
    return None if coded else bytes(block[at : at + length]), at + length
