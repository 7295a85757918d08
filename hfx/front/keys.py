"""The file of API keys, which is read again when it changes, and the rates of the callers with each label."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from hfx.errors import UsageError
from hfx.front.file_changes import FileChanges, open_regular
from hfx.front.refusals import USED_UP, Refusal

SHORTEST = 16  # characters of an API key: fewer can be guessed
COMMENT = "#"
LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
KEY = re.compile(rf"[!-~]{{{SHORTEST},}}")  # characters that a header can contain
RATE = re.compile(r"\d{1,12}(\.\d{1,6})?")
LARGEST = 1 << 20  # bytes of the file
DIGITS_SHOWN = 8  # of the digest of a key without a label
MINUTE = 60.0
LABEL_HEADER = b"x-hfx-label"  # used only between the front and the process of batches
KEYLESS_SECONDS = 10  # before a batch whose label has no key any more tries again


@dataclass(frozen=True)
class Rates:
    """The rates that all callers of a label together may use. The default is no limit."""

    requests_per_second: float = math.inf
    tokens_per_minute: float = math.inf


class Budget:
    """A budget of units that grows by `rate` each second, up to `most`. It may be overdrawn."""

    def __init__(self, rate: float, most: float) -> None:
        self._rate, self._most = rate, most
        self._left, self._since = most, 0.0

    def wait(self, now: float, units: float) -> float:
        """Return the seconds until the budget has `units`, or 0 if it has them now."""
        self._left = min(self._most, self._left + (now - self._since) * self._rate)
        self._since = now
        return max(0.0, (units - self._left) / self._rate)

    def take(self, units: float) -> None:
        """Take `units` from the budget."""
        self._left -= units


@dataclass
class Caller:
    """The callers with the keys of one label: their rates, and what is left of them."""

    label: str
    rates: Rates = Rates()
    requests: Budget | None = field(init=False, default=None)
    tokens: Budget | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if (rate := self.rates.requests_per_second) < math.inf:
            self.requests = Budget(rate, max(1.0, rate))
        if (rate := self.rates.tokens_per_minute) < math.inf:
            self.tokens = Budget(rate / MINUTE, rate)

    def admit(self, now: float, has_counts: bool) -> None:
        """Count a request that begins at `now` (seconds of any clock).

        Raises Refusal: 429 if the requests of this second or the tokens of this minute are used up; 403 if tokens are
        limited and the answer does not state its tokens (`has_counts` is false).
        """
        if self.tokens is not None:
            if not has_counts:
                fix = "Send it to a path whose answers state their tokens, such as /v1/completions."
                raise Refusal(403, f"The tokens of {self.label} are bounded, and this path does not count them. {fix}")
            self._refuse("tokens a minute", self.rates.tokens_per_minute, self.tokens.wait(now, 1))
        if self.requests is not None:
            self._refuse("requests a second", self.rates.requests_per_second, self.requests.wait(now, 1))
            self.requests.take(1)

    def _refuse(self, name: str, rate: float, seconds: float) -> None:
        if seconds:
            again = [(b"retry-after", b"%d" % math.ceil(seconds))]
            raise Refusal(429, f"{self.label} has used its {rate:g} {name}. Try again later.", again, reason=USED_UP)

    def hold(self, now: float, tokens: int) -> None:
        """Take the `tokens` that a request may need, before it is answered.

        Raises Refusal (429) if fewer tokens are left, unless at least half of a minute's tokens are left.
        """
        if self.tokens is not None:
            rate = self.rates.tokens_per_minute
            self._refuse("tokens a minute", rate, self.tokens.wait(now, min(tokens, rate / 2)))
            self.tokens.take(tokens)

    def spend(self, tokens: int) -> None:
        """Count the tokens of an answer, without a limit. A negative number gives back tokens that were held."""
        if self.tokens is not None:
            self.tokens.take(tokens)


ANYONE = Caller("")


def read_keys(path: str) -> dict[bytes, Caller]:
    """Return the caller for the digest of each key in the file at `path`.

    A line is KEY or LABEL:KEY, and may continue with requests_per_second=N and tokens_per_minute=N. Empty lines and
    lines that begin with # are ignored. Raises UsageError for any other line.
    """
    callers: dict[str, Caller] = {}
    keys: dict[bytes, Caller] = {}
    for number, line in enumerate(_read(path).splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(COMMENT):
            continue
        label, key, rates = _parsed(line, f"Line {number} of {path}")
        digest = _digest(key.encode())
        label = label or f"key-{digest.hex()[:DIGITS_SHOWN]}"
        caller = callers.setdefault(label, Caller(label, rates))
        if caller.rates != rates:
            raise UsageError(
                f"Line {number} of {path} bounds {label!r} in another way than a line before it.",
                "Give all keys of a label the same bounds.",
            )
        keys[digest] = caller
    if not keys:
        raise UsageError(f"{path} has no API key.", "Write one into each line.")
    return keys


def _read(path: str) -> str:
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise OSError(f"it is larger than {LARGEST} bytes")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        fix = f"Give a text file that this program's user ({os.getuid()}) can read."
        if isinstance(error, FileNotFoundError):
            fix = f'Correct the path, or make the file: echo "web:$(openssl rand -hex 24)" > {shlex.quote(path)}'
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"The file of API keys {path} can't be read: {reason}.", fix) from None


def _parsed(line: str, where: str) -> tuple[str, str, Rates]:
    named, *rates = line.split()
    label, colon, key = named.partition(":")
    if not (colon and LABEL.fullmatch(label)):
        label, key = "", named
    if not KEY.fullmatch(key):
        raise UsageError(
            f"{where} is not an API key: it is shorter than {SHORTEST} characters, or has others.",
            f"Write KEY or LABEL:KEY, with a key of {SHORTEST} or more letters, digits and signs without spaces, "
            "as `openssl rand -hex 24` makes it.",
        )
    return label, key, Rates(**dict(_rate(part, where) for part in rates))


def _rate(text: str, where: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in Rates.__dataclass_fields__ or not RATE.fullmatch(value) or not float(value):
        names = " and ".join(f"{each}=N" for each in Rates.__dataclass_fields__)
        raise UsageError(f"{where} has {text[:40]!r} behind its key.", f"Only {names} may be there, with N above 0.")
    return name, float(value)


class ApiKeys:
    """The keys in the file at `path`, one of which a request needs. With an empty path, requests need no key."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._keys = read_keys(path) if path else {}
        self._changes = FileChanges([path] if path else [])

    def check(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller whose key a request has. Raises Refusal (401) if the request has no known key."""
        if not self._keys:
            return ANYONE
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        caller = self._keys.get(_digest(given.strip()))  # the time of this depends on digests, not on keys
        if scheme.lower() != b"bearer" or caller is None:
            message = "The API key is missing or not known. Send it as `Authorization: Bearer KEY`."
            raise Refusal(401, message, [(b"www-authenticate", b"Bearer")])
        return caller

    def labelled(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller with the label in a request of a batch.

        Raises Refusal (429) if the file has keys but none with this label. The batch then pauses until the label has a
        key again.
        """
        label = headers.get(LABEL_HEADER, b"").decode()
        caller = next((caller for caller in self._keys.values() if caller.label == label), None)
        if caller is None and self._keys:
            again = [(b"retry-after", b"%d" % KEYLESS_SECONDS)]
            message = f"There is no API key with the label {label!r} any more. Add one, or cancel the batch."
            raise Refusal(429, message, again, reason=USED_UP)
        return caller or Caller(label)

    def reload(self) -> str:
        """Read the file again if it has changed, and return a message for the operator, or else an empty string.

        Labels whose rates are the same keep what is left of them. An unusable file changes nothing, and is read again
        by the next call.
        """
        if not self._changes.settled():
            return ""
        try:
            keys = read_keys(self._path)
        except UsageError as error:
            return self._changes.failed(f"The API keys stay as they were. {error.message} {error.fix}")
        before = {caller.label: caller for caller in self._keys.values()}
        now = {caller.label: caller.rates for caller in keys.values()}
        kept = {label: caller for label, caller in before.items() if caller.rates == now.get(label)}
        self._keys = {digest: kept.get(caller.label, caller) for digest, caller in keys.items()}
        return f"{self._path} has {len(keys)} API keys now."


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
