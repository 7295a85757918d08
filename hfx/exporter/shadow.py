"""Compare the answers of a server with those of reference models, in a process that runs only on idle cores.

`python -m hfx.exporter.shadow REPOSITORY REFERENCES DEVICE` reads requests and their answers from stdin: a line of JSON
with the fields of ServedAnswer, which has the sizes of the two bodies instead of the bodies, and then the bodies. For
each pair it writes a line of JSON to stdout with the fields of a Verdict. REFERENCES has a model of the same name for
each model that is compared. If it is the same publication, answers must be equal; if it is another one, usually in
fp32, the limits of the gate apply.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import IO, Any

from hfx import names
from hfx.client import tensors
from hfx.errors import HfxError, ModelMissing, ServerError
from hfx.exporter.encoder.gate import accuracy_of, limits
from hfx.exporter.encoder.kinds import EncoderKind
from hfx.exporter.encoder.kinds.classifier import ALL_LABELS
from hfx.exporter.options import DEFAULT_MAX_DROP
from hfx.exporter.verify import Published, open_published, share_at_export
from hfx.local import Answer, Device, Request, plain_answer, scalar_outputs
from hfx.manifest import Manifest
from hfx.repository.catalog import model as read_model

MOST_BYTES = 8 << 20  # of a body, decompressed
MOST_ROWS = 4  # compared of a request, so that a request of 1,000 rows does not count as 1,000
TRANSPORT = frozenset({"id", names.STREAM, names.TIMEOUT_MS, "priority"})  # request fields that don't affect the answer
WORST_DRIFT = 1.0  # replaces a drift that is not finite


@dataclass(frozen=True)
class ServedAnswer:
    """A request to Triton's HTTP endpoint and its answer; `heads` says where the tensors begin in each of them."""

    path: str
    heads: tuple[int | None, int | None]
    encoding: str
    request: bytes
    answer: bytes


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison: how many answers are the `same`, a `tie`, or different (`differs`).

    `drift` is the sum of their drifts. The limits are `agreement`, the least share of answers that don't differ, and
    `drift_limit`, the largest mean drift, if it is limited. `skipped` is the reason why nothing was compared:
    `missing`, `random`, `refused` or `unread`.
    """

    model: str
    same: int = 0
    tie: int = 0
    differs: int = 0
    drift: float = 0.0
    agreement: float = 0.0
    drift_limit: float | None = None
    skipped: str = ""


class Skipped(Exception):
    """A pair can't be compared. The argument is the reason."""


class Reference:
    """An open reference model, and the limits for the model that is served under its name.

    If both are the same publication, and it is served on a CPU, all answers must be equal: on a CPU, no answer depends
    on its batch.
    """

    def __init__(self, served: Manifest, published: Published, references: Path, device: Device) -> None:
        name = published.manifest.name
        self.task = published.task
        self.scalars = scalar_outputs(references, name)
        self.is_same = served.files == published.manifest.files and device == "cpu"
        threads = None if self.is_same else 1
        self.drift: float | None = None
        if isinstance(self.task, EncoderKind):
            from hfx.local.encoder import LocalModel

            bounds = limits(accuracy_of(served, device), None)
            self.agreement, self.drift = bounds.agreement, bounds.drift
            self.encoder: Any = LocalModel.open(references, name, threads=threads)
        else:
            from hfx.local.generator import LocalGenerator

            parity: Any = served.parity[device]
            self.agreement = (share_at_export(parity) or 1.0) - DEFAULT_MAX_DROP
            self.generator = LocalGenerator.open(references, name, threads=threads)
        if self.is_same:
            self.agreement, self.drift = 1.0, None

    def compare(self, request: Request, answer: Answer) -> tuple[str, float]:
        """Return `same`, `tie` or `differs`, and the difference of the scores. Raises Skipped."""
        if isinstance(self.task, EncoderKind) and self.is_same:
            expected = self.encoder.infer(request)
            return "same" if all(expected[name] == value for name, value in answer.items()) else "differs", 0.0
        if isinstance(self.task, EncoderKind):
            every = {names.TOP_K: ALL_LABELS} if self.task.task is names.Task.TEXT_CLASSIFICATION else {}
            found = self.task.compare(self.encoder.infer({**request, **every}), answer)
            drift = found.drift if isfinite(found.drift) else WORST_DRIFT
            differs = found.differs or not isfinite(found.drift)
            return "differs" if differs else "same" if found.same == 1 else "tie", drift
        if self.generator.is_random(request):
            raise Skipped("random")
        same = self.generator.infer(request)[names.TEXT_OUTPUT] == answer[names.TEXT_OUTPUT]
        return "same" if same else "differs", 0.0


class Comparisons:
    """Compares answers of the models in `repository`, served on `device`, with those of the models in `references`.

    A reference model is opened when it is first needed, and again after it or the served model is published anew.
    """

    def __init__(self, repository: Path, references: Path, device: Device) -> None:
        self._repository, self._references, self._device = repository, references, device
        self._open: dict[str, tuple[Any, Reference]] = {}

    def verdict(self, pair: ServedAnswer) -> Verdict:
        """Compare a request's answer with the reference model's."""
        name = pair.path.split("/")[3].removesuffix(names.STREAM_SUFFIX)
        try:
            reference = self._reference(name)
            found = [reference.compare(*row) for row in rows(pair, reference.scalars)]
        except Skipped as reason:
            return Verdict(name, skipped=str(reason))
        except ModelMissing:
            return Verdict(name, skipped="missing")
        except HfxError as error:
            logging.getLogger(__name__).warning("%s can't be compared: %s", name, error)
            return Verdict(name, skipped="refused")
        except (KeyError, ValueError, TypeError, IndexError):  # the request leaves outputs out, or has several texts
            return Verdict(name, skipped="unread")
        same, tie, differs = (sum(kind == verdict for kind, _ in found) for verdict in ("same", "tie", "differs"))
        drift = sum(apart for _, apart in found)
        return Verdict(name, same, tie, differs, drift, reference.agreement, reference.drift)

    def _reference(self, name: str) -> Reference:
        manifests = [folder / name / names.MANIFEST_FILE for folder in (self._repository, self._references)]
        served, published = read_model(self._repository, name), open_published(self._references, name)
        seen = [path.stat().st_mtime_ns for path in manifests]
        if name not in self._open or self._open[name][0] != seen:
            self._open[name] = seen, Reference(served, published, self._references, self._device)
        return self._open[name][1]


def rows(pair: ServedAnswer, scalars: frozenset[str]) -> Iterator[tuple[Request, Answer]]:
    """Yield the first rows of a request, each with its answer, as plain values. Raises Skipped and ServerError."""
    answer = _decompressed(pair.answer, pair.encoding)
    if pair.path.endswith("/infer"):
        inputs = tensors.decode_infer(pair.request, _head(pair.heads[0]), "inputs")
        answered = tensors.decode_infer(answer, _head(pair.heads[1]))
        for row in range(min(MOST_ROWS, *(len(array) for array in answered.values()))):
            request = {name: tensors.plain_values(array[row : row + 1]) for name, array in inputs.items()}
            found = plain_answer({name: array[row : row + 1] for name, array in answered.items()}, scalars)
            if isinstance(text := found.get(names.TEXT_OUTPUT), list):  # a generator's text is in a list
                found = {**found, names.TEXT_OUTPUT: text[0]}
            yield _own(request), found
        return
    events = [json.loads(line.removeprefix(tensors.EVENT)) for line in answer.decode().splitlines() if line.strip()]
    if any("error" in event for event in events):
        raise Skipped("refused")
    yield _own(json.loads(pair.request)), {names.TEXT_OUTPUT: "".join(each[names.TEXT_OUTPUT] for each in events)}


def _own(request: Mapping[str, Any]) -> Request:
    """Return the fields that the answer depends on. Raises Skipped for a request that only cancels another."""
    if names.CANCEL_REQUEST in request:
        raise Skipped("refused")
    return {name: value for name, value in request.items() if name not in TRANSPORT}


def _head(length: int | None) -> dict[str, str]:
    return {} if length is None else {tensors.HEADER_LENGTH: str(length)}


def _decompressed(body: bytes, encoding: str) -> bytes:
    if not encoding:
        return body
    try:
        content = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, MOST_BYTES + 1)
    except zlib.error as error:
        raise ServerError(f"An answer is not {encoding}: {error}.") from error
    if len(content) > MOST_BYTES:
        raise Skipped("unread")
    return content


def read_pair(stream: IO[bytes]) -> ServedAnswer | None:
    """Read the next request and its answer; None at the end."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    fields: Any = json.loads(line)
    request, answer = (stream.read(size) for size in fields["sizes"])
    return ServedAnswer(fields["path"], tuple(fields["heads"]), fields["encoding"], request, answer)


def main(repository: str, references: str, device: Device) -> None:
    """Compare the pairs on stdin until it ends."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # threads that start later inherit it
    comparisons = Comparisons(Path(repository), Path(references), device)
    while pair := read_pair(sys.stdin.buffer):
        print(json.dumps(asdict(comparisons.verdict(pair))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
