"""Streams of HTTP/1.1 requests by a seed, whole and damaged, and a strict reader of them (RFC 9112).

A damaged request is followed by whole ones, and bodies look like requests, so that a parser that frames a request
otherwise than another one sees other requests.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

LENGTH, CODING, HEAD_LENGTH = b"content-length", b"transfer-encoding", b"inference-header-content-length"
MODEL = b"/v2/models/echo"
SMUGGLED = b"GET /v2/models/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
DAMAGED = 0.75  # the share of streams with damage
MOST_CHANGES = 3  # of a stream

IN_CHUNKS = ("coding", "size", "crlf", "trailers")
CHANGES = (*IN_CHUNKS, "line", "line", "method", "target", "version", "length", "both", "host", "end", "blank", "head")

KINDS = ("generate", "generate", "generate_stream", "infer", "read", "nowhere")
READ = (MODEL, MODEL + b"/stats", b"/v2", b"/v2/health/live", b"/v2/nowhere")
METHODS = (b"get", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PRI", b"CONNECT", b"POST\t", b" POST", b"P\0ST")
TARGETS = (
    b"http://localhost/v2/models/echo/generate", b"HTTP://other:80/v2", b"//v2", b"/v2/../v2", b"/v2/./health/live",
    b"/v2/models/%65cho/generate", b"/v2/models/echo%2fgenerate", b"/v2//models/echo/generate", b"*", b"localhost:80",
    b"/v2/models/echo/generate?a=/v2", b"/v2#part", b"/v2\0", b"/v2\xe9", b"/v2\t", b"/v2 /v2", b"", b"\\v2",
    b"/v2/models/echo/", b"/v2/models/e%00cho", b"/" + b"a" * 9000, b"/v2/health/live ", b"/metrics", b"http:///v2",
    b"/v2/models/echo;a=b", b"/v2/health/live/", b"/health?x", b"?/v2", b"/v2%0d%0aX:y", b"/v2/models/%e9",
)  # fmt: skip
VERSIONS = (
    b" HTTP/0.9", b" HTTP/2.0", b" HTTP/1.2", b" HTTP/11.1", b" HTTP/1.1 ", b" http/1.1",
    b"", b" ", b"  HTTP/1.1", b" HTTP/1.1\n", b" HTTP/1,1", b" HTTP/1.", b" RTSP/1.0", b"\tHTTP/1.1", b" HTTP/1.1\r",
)  # fmt: skip
LENGTHS = (
    b"+%d", b"0%d", b"%d, %d", b"%d, 6", b"-%d", b"%d0000000000000000000000", b"", b"0x%x", b"%d ", b" %d", b"\t%d\t",
    b"%d.0", b"%de0", b"%d\0", b"1_%d", b"'%d'", b"%d;", b"%d\r\n %d", b"0", b"%d\x0b", b"\xc2\xa0%d", b"%d,",
)  # fmt: skip
CODINGS = (
    b"Chunked", b"chunked, chunked", b"identity", b"gzip, chunked", b"chunked, gzip", b"chunked, x", b"x, chunked",
    b"\tchunked", b"chunked\t", b"chunked;q=1", b'"chunked"', b"xchunked", b"chunke", b"chunked\0", b"\x0bchunked", b"",
    b" chunked ", b"chunked,", b", chunked", b"chunked\r\n\t", b"chunked\nX: y", b"\xc2\xa0chunked", b"chun ked",
)  # fmt: skip
SIZES = (
    b"%X", b"000%x", b"%x;a=b", b'%x;a="b"', b'%x;a="\\""', b'%x;a="\r\n"', b"%x;", b"%x ;a", b"%x ", b" %x", b"0x%x",
    b"+%x", b"-%x", b"%x\n", b"%x_0", b"", b"g", b"fffffffffffffffff%x", b"%x\t", b"%x,", b"%x\0", b"%x;a\nb", b"%x;a=",
)  # fmt: skip
LINES = (
    b"Content-Length : 5", b"Content-Length\t: 0", b" Content-Length: 5", b"Transfer-Encoding : chunked",
    b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: 0\r\ncontent-length: 0", b"X: a\r\n folded",
    b"X: a\n folded", b"X: a\nContent-Length: 3", b"X: a\rContent-Length: 3", b"X: a\r\r\nY: b", b"X\0: a", b"X: \0a",
    b"X: \xe9", b"\xe9: a", b": a", b"X", b"X:", b"X:\t", b"X: a\tb", b"X Y: a", b"X:a", b"Host: other", b"X: \x7f",
    b"Host:", b"hOST: localhost", b"Transfer_Encoding: chunked", b"Content_Length: 5", b"X-" + b"a" * 70_000 + b": b",
    b"X: \x01", b"X: " + b"a" * 5000, b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"\r: a",
    b"Connection: close", b"Connection: Content-Length", b"Connection: keep-alive, Transfer-Encoding, Host",
    b"Connection: upgrade\r\nUpgrade: h2c", b"Upgrade: websocket\r\nConnection: Upgrade", b"Connection: , ,close",
    b"Connection: keep-alive, upgrade\r\nUpgrade: TLS/1.0", b"Upgrade: irc\r\nConnection: x, Upgrade",
    b"Expect: 100-continue", b"Expect: 200", b"TE: trailers", b"Trailer: Content-Length", b"Content-Encoding: gzip",
    b"Accept-Encoding: gzip", b"Accept-Encoding: identity\r\nAccept-Encoding: x", b"Content-Encoding: gzip, identity",
    b"Accept-Encoding: \xe9\t;q=0", b"Inference-Header-Content-Length: 9", b"Content-Type: text/plain",
    b"Proxy-Connection: keep-alive", b"Keep-Alive: max=0", b"traceparent: x", b"X-Request-ID: \tid", b"Range: bytes=0-",
    b"Content-Type: application/x-www-form-urlencoded", b"@: a", b"X: a,\xa0b", b"(X): y", b"\tX: y", b"{X}: y",
)  # fmt: skip
HEAD_LENGTHS = (
    b"+%d", b"0%d", b"-1", b"99999999999", b"%d, %d", b"", b"%d.0", b"0x%x", b"%d\t", b"1_%d", b"%d\xb2",
    b"%d\r\nInference-Header-Content-Length: 0",
)  # fmt: skip
TRAILERS = (
    b"X: y", b"Content-Length: 7", b"Transfer-Encoding: gzip", b"Host: other", b"Inference-Header-Content-Length: 1",
    b"X: y\r\n z", b"X", b"X: y\nZ: z", b"X : y", b"Content-Length: x", b"Connection: close", b"Expect: 100-continue",
    b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"X: " + b"a" * 70_000, b"Accept-Encoding: x",
)  # fmt: skip
ENDS = (b"\n", b"\r", b"\r\n ", b" \r\n", b"\r\r\n", b"\r\n\r\n", b"\t\r\n", b"\n\r\n", b"")  # of a line
SPECIAL = (b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b"\x0b", b"\x80", b"0", b";", b",", b"\r\n\r\n", b"%")


@dataclass(frozen=True)
class Read:
    """A request as a reader has read it, with its headers' names in lower case."""

    method: bytes
    target: bytes
    version: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @property
    def is_last(self) -> bool:
        """Whether the connection ends after this request."""
        options = b",".join(self.header(b"connection")).lower().split(b",")
        return self.version == b"1.0" or b"close" in [option.strip() for option in options]

    @property
    def path(self) -> bytes:
        """The path of the target, without a query or a fragment."""
        found = re.fullmatch(rb"(?:[A-Za-z]+://[^/?#]*)?(/[^?#]*)?([?#].*)?", self.target)
        return found[1] or b"/" if found else self.target

    def header(self, name: bytes) -> list[bytes]:
        """The values of the headers with a name in lower case."""
        return [value for each, value in self.headers if each == name]


# What llhttp takes beside the grammar, as it frames no request otherwise: several spaces before the version, RTSP for
# HTTP, an extension of a chunk with an empty value, and any empty lines before a request.
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
START = re.compile(rb"(%b) ([!-~]+) +(?:HTTP|RTSP)/(1\.[01])\r\n" % TOKEN)
HEADER = re.compile(rb"(%b):[ \t]*((?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?)[ \t]*\r\n" % TOKEN)
QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})((?:;%b(?:=(?:%b|%b)?)?)*)\r\n" % (TOKEN, TOKEN, QUOTED))
DIGITS = re.compile(rb"[0-9]+")
EMPTY = re.compile(rb"[\r\n]*")  # before a request


class Malformed(ValueError):
    """The stream is no request from here on, or its end can't be known."""


class Incomplete(ValueError):
    """The stream ends within a request."""


class Reader:
    """Reads requests by the letter of RFC 9112. What is not in its grammar, or has two meanings, is Malformed."""

    def __init__(self, stream: bytes) -> None:
        self._stream, self._at = stream, 0
        self.requests: list[Read] = []
        self.is_malformed = False
        try:
            while self._at < len(stream):
                self.requests.append(self._request())
                if self.requests[-1].is_last:
                    break
        except Incomplete:
            pass
        except Malformed:
            self.is_malformed = True

    @property
    def rest(self) -> bytes:
        """What follows the last whole request."""
        return self._stream[self._at :]

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        found = pattern.match(self._stream, self._at)
        if found is None:
            raise Incomplete if b"\n" not in self._stream[self._at :] else Malformed
        self._at = found.end()
        return found

    def _take(self, expected: int | bytes) -> bytes:
        """Return the next bytes: so many, or these."""
        size = expected if isinstance(expected, int) else len(expected)
        piece = self._stream[self._at : self._at + size]
        if isinstance(expected, bytes) and not expected.startswith(piece):
            raise Malformed
        if len(piece) < size:
            raise Incomplete
        self._at += size
        return piece

    def _fields(self) -> tuple[tuple[bytes, bytes], ...]:
        fields = []
        while not self._stream.startswith(b"\r\n", self._at):
            name, value = self._match(HEADER).groups()
            fields.append((name.lower(), value))
        self._at += 2
        return tuple(fields)

    def _request(self) -> Read:
        self._match(EMPTY)
        method, target, version = self._match(START).groups()
        read = Read(method, target, version, self._fields(), b"")
        lengths, codings = read.header(LENGTH), read.header(CODING)
        if len(lengths) > 1 or (lengths and codings):
            raise Malformed
        body = b""
        if codings:
            if len(codings) > 1 or codings[0].lower() != b"chunked" or version == b"1.0":
                raise Malformed
            body = b"".join(iter(self._chunk, b""))
            self._fields()
        elif lengths:
            if not DIGITS.fullmatch(lengths[0]):
                raise Malformed
            body = self._take(int(lengths[0]))
        return Read(method, target, version, read.headers, body)

    def _chunk(self) -> bytes:
        size = int(self._match(CHUNK)[1], 16)
        chunk = self._take(size)
        if size:
            self._take(b"\r\n")
        return chunk


def stream(seed: int) -> bytes:
    """Return the requests of a seed, as they come on one connection."""
    random = Random(seed)
    number = random.choice((1, 1, 2, 2, 3))
    damaged = random.randrange(number) if random.random() < DAMAGED else -1
    content = b"".join(_Request(random, f"{seed}-{place}", place == damaged).sent() for place in range(number))
    if random.random() < 0.1:
        at = random.randrange(len(content))
        content = content[:at] + random.choice(SPECIAL) + content[at + random.randrange(2) :]
    return content[: random.randint(1, len(content))] if random.random() < 0.05 else content


class _Request:
    """A request, whose parts in `_changes` are odd."""

    def __init__(self, random: Random, name: str, is_damaged: bool) -> None:
        self._random, self._name = random, name
        self._changes = {*random.choices(CHANGES, k=random.randint(1, MOST_CHANGES))} if is_damaged else set[str]()

    def _pick(self, what: str, usual: bytes, values: Sequence[bytes]) -> bytes:
        return self._random.choice(values) if what in self._changes else usual

    def sent(self) -> bytes:
        """Return the bytes of the request."""
        random, changes = self._random, self._changes
        kind = "infer" if "head" in changes else random.choice(KINDS)
        method, path, body, lines = b"POST", b"%b/%b" % (MODEL, kind.encode()), b"", [b"Host: localhost"]
        if kind == "read":
            method, path = random.choice((b"GET", b"GET", b"HEAD")), random.choice(READ)
        elif kind == "infer":
            body, head_length = self._infer_body()
            if head_length >= 0:
                form = self._pick("head", b"%d", HEAD_LENGTHS)
                lines.append(b"Inference-Header-Content-Length: " + _filled(form, head_length))
        else:
            body = json.dumps({"text_input": self._name + "x" * random.choice((0, 10, 5000))}).encode()
            body = random.choice((body, body, body + b"\r\n\r\n", SMUGGLED, b"0\r\n\r\n" + SMUGGLED, body + SMUGGLED))
        if body and random.random() < 0.1:
            coding, coded = random.choice(((b"gzip", gzip.compress(body, mtime=0)), (b"deflate", zlib.compress(body))))
            lines, body = [*lines, b"Content-Encoding: " + coding], coded
        if "line" in changes:
            lines.insert(random.randint(0, len(lines)), random.choice(LINES))
        if "host" in changes:
            lines.remove(b"Host: localhost")
            lines += random.choice(((), (b"Host: localhost", b"host:other"), (b"Host: localhost",) * 2))
        is_chunked = not changes.isdisjoint(IN_CHUNKS) or (random.random() < 0.4 and "length" not in changes)
        framing, content = self._chunks(body) if is_chunked else self._length(body)
        lines.insert(random.randint(0, len(lines)), framing)
        if "both" in changes:
            others = b"Transfer-Encoding: chunked", b"Content-Length: %d" % random.choice((0, 5, len(body)))
            lines.insert(random.randint(0, len(lines)), random.choice(others))
        version = self._pick("version", b" HTTP/1.0" if random.random() < 0.05 else b" HTTP/1.1", VERSIONS)
        start = self._pick("method", method, METHODS) + b" " + self._pick("target", path, TARGETS) + version
        end, blank = self._pick("end", b"\r\n", ENDS), self._pick("blank", b"\r\n", ENDS)
        return b"\r\n".join([start, *lines]) + end + blank + content

    def _infer_body(self) -> tuple[bytes, int]:
        """Return a body, and the length of its JSON if binary tensors follow, or -1."""
        text = self._name.encode() + self._random.choice((b"", SMUGGLED))
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
        form = self._random.choice(("json", "binary", "raw"))
        if form == "json":
            return json.dumps({"inputs": [{**tensor, "data": [text.decode()]}]}).encode(), -1
        if form == "raw":
            return text, 0
        head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(text) + 4}}]}).encode()
        return head + len(text).to_bytes(4, "little") + text, len(head)

    def _length(self, body: bytes) -> tuple[bytes, bytes]:
        return b"Content-Length: " + _filled(self._pick("length", b"%d", LENGTHS), len(body)), body

    def _chunks(self, body: bytes) -> tuple[bytes, bytes]:
        random = self._random
        at = random.randint(0, len(body))
        pieces = [piece for piece in (body[:at], body[at:]) if piece]
        odd = random.randrange(len(pieces) + 1) if "size" in self._changes else -1
        content = b""
        for place, piece in enumerate([*pieces, b""]):
            form = random.choice(SIZES) if place == odd else b"%x"
            content += _filled(form, len(piece)) + b"\r\n" + piece
            content += self._pick("crlf", b"\r\n", (b"", b"\n", b"\r", b"x\r\n", b"\r\n\r\n")) if piece else b""
        content += self._pick("trailers", b"", tuple(line + b"\r\n" for line in TRAILERS)) + b"\r\n"
        return b"Transfer-Encoding: " + self._pick("coding", b"chunked", CODINGS), content


def _filled(form: bytes, number: int) -> bytes:
    """Return `form` with the number in each of its places."""
    for place in (b"%d", b"%x", b"%X"):
        form = form.replace(place, place % number)
    return form
