"""Choose the CPU runtime that serves a model, by measuring on this machine, and record the choice.

The speeds of native operators and of ONNX Runtime's own differ by model, precision and processor. So for encoders,
`auto` times both, in turn, on the files and settings that would be served. This module works on sessions, not on
checkpoints.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hfx import names, native
from hfx.errors import CheckpointUnsupported, NativeMissing
from hfx.exporter.options import CpuRuntime
from hfx.exporter.quantize.generator import ALL_LEVELS, FOUR_LEVELS
from hfx.python_backends.engine.sessions import CPUINFO, multiplies_bytes_exactly

Name = TypeVar("Name", bound=str)
# native: ONNX Runtime with the operators of hfx/native.
Runtime = Literal["onnxruntime", "native"]
ENCODER_RUNTIMES: tuple[Runtime, ...] = ("native", "onnxruntime")  # the first one in a near tie is chosen
# (rows, width). A single short text is timed, and a batch as it forms under load.
COMPARED_SHAPES = ((2, 16), (8, 16), (16, 64))
TIMED_SHAPES = ((1, 16), (8, 64))
SHORTER = (48, 32, 24, 16, 8)  # the widths with which a graph that fails is tried again
ROUNDS = 7  # at least this many, and SETTLED_SECONDS; no further round begins after SECONDS_A_SHAPE
SETTLED_SECONDS, SECONDS_A_SHAPE = 1.5, 3.0
PARTS = 5  # of the rounds; the fastest runtime must be faster in each part
NEAR = 1.05  # times whose ratio is below this are a near tie
CLEAR = 1.5  # if the fastest is this much faster in each part, no further round begins
BUSY_CORES = 0.3  # used by other processes; the manifest states a larger number
CONTRIB = "com.microsoft"
STAT = Path("/proc/stat")
LARGEST_BYTES = 1 << 30  # above it, writing the optimized graph would take longer than it is worth


@dataclass(frozen=True)
class CpuChoice:
    """The chosen runtime, and the times of all candidates: runtime -> {"ROWSxWIDTH": least milliseconds}.

    `near` has the runtimes of a near tie, the chosen one first. `other_cores` is the number of cores that other
    processes used during the measurement. `refused` has the reasons why runtimes can't run the model.
    """

    runtime: Runtime
    milliseconds: Mapping[Runtime, Mapping[str, float]] = field(default_factory=dict)
    near: tuple[Runtime, ...] = ()
    other_cores: float = 0.0
    refused: Mapping[str, str] = field(default_factory=dict)

    def as_json(self, requested: CpuRuntime) -> dict[str, Any]:
        """Return the choice for the manifest."""
        figures: dict[str, Any] = {
            "runtime": self.runtime,
            "requested": requested,
            "milliseconds": {runtime: dict(times) for runtime, times in self.milliseconds.items()},
        }
        others = {
            "near": list(self.near) if len(self.near) > 1 else [],
            "other_cores": self.other_cores if self.other_cores > BUSY_CORES else 0.0,
            "refused": dict(self.refused),
        }
        return figures | {name: value for name, value in others.items() if value}


class Candidate(Protocol):
    """A file that a runtime can run (variants/variant.py)."""

    @property
    def path(self) -> Path:
        """The ONNX file of the net."""

    def backend_config(self, threads: int) -> dict[str, Any]:
        """Return the part of a model configuration that opens the session."""


def weight_levels(cpuinfo: Path = CPUINFO) -> int:
    """Return the `levels` of int8 weights (quantize/generator.py) that are multiplied correctly on this processor.

    x86 without VNNI adds pairs of u8 x s8 products in 16 bits, which overflow if two weights add up to more than 128.
    """
    return ALL_LEVELS if multiplies_bytes_exactly(cpuinfo) else FOUR_LEVELS


def why_no_native() -> str:
    """Return why the native operators can't run on this machine; empty if they can."""
    try:
        return "" if native.kernels() else native.refusal()
    except NativeMissing as missing:
        return missing.message.rstrip(".")


@dataclass(frozen=True)
class Timer:
    """Times files of an encoder with the token `inputs`, on sequences of at most `max_length` tokens.

    `item_rank` is 1 for requests of one sequence, and 2 for those of several. Labels have `vectors` of so many numbers.
    """

    inputs: tuple[str, ...]
    item_rank: int
    threads: int
    max_length: int
    vectors: int = 0

    def choose(self, candidates: Mapping[Runtime, Candidate]) -> CpuChoice:
        """Return the fastest candidate over TIMED_SHAPES, or the first of a near tie, with figures.

        A candidate whose answers depend on the batch on this machine is refused if there is another.
        Raises CheckpointUnsupported if the graph fails.
        """
        sessions, refused = dict[Runtime, Any](), dict[str, str]()
        try:
            sessions = {runtime: self._open(candidate) for runtime, candidate in candidates.items()}
            if len(sessions) > 1:
                for runtime, session in sessions.items():
                    if self._depends_on_batch(session):
                        refused[runtime] = "its answers depend on the batch on this processor"
                sessions = {runtime: s for runtime, s in sessions.items() if runtime not in refused} or sessions
            with other_work() as other_cores:
                seconds = self._times(sessions)
        except Exception as error:  # each runtime has its own
            folder = next(iter(candidates.values())).path.parent
            raise CheckpointUnsupported(
                f"The exported graph fails: {last_line(error, folder)}", self._advice(sessions.values())
            ) from error
        near = near_tie(seconds)
        return CpuChoice(near[0], _milliseconds(seconds), near, other_cores(), refused)

    def in_turn(self, files: Mapping[Name, Candidate]) -> dict[Name, dict[str, float]]:
        """Return name -> {"ROWSxWIDTH": least milliseconds} of files, which are run in turn."""
        return _milliseconds(self._times({name: self._open(file) for name, file in files.items()}))

    def _open(self, candidate: Candidate) -> Any:
        from hfx.python_backends.onnxruntime.sessions import open_session

        return open_session(candidate.backend_config(self.threads), candidate.path, "CPU", 0)

    def _times(self, sessions: Mapping[Name, Any]) -> dict[Name, dict[str, list[float]]]:
        """Return name -> {"ROWSxWIDTH": seconds of each round} for TIMED_SHAPES."""
        times: dict[Name, dict[str, list[float]]] = {name: {} for name in sessions}
        for rows, width in ((rows, min(width, self.max_length)) for rows, width in TIMED_SHAPES):
            feed = self._feed(rows, width)
            ways = {name: partial(s.run, feed, [o.name for o in s.outputs]) for name, s in sessions.items()}
            for name, seconds in interleave(ways).items():
                times[name][f"{rows}x{width}"] = seconds
        return times

    def _depends_on_batch(self, session: Any) -> bool:
        """Return whether the outputs of the first row of a batch differ in any bit from those of the row alone."""
        outputs = [each.name for each in session.outputs]
        for rows, width in ((rows, min(width, self.max_length)) for rows, width in COMPARED_SHAPES):
            alone, batch = (session.run(self._feed(count, width), outputs) for count in (1, rows))
            if any((alone[name] != batch[name][: len(alone[name])]).any() for name in outputs):
                return True
        return False

    def _advice(self, sessions: Collection[Any]) -> str:
        """Return advice on a graph that fails on some of TIMED_SHAPES; the reason may be long texts, or the graph."""
        rows, longest = TIMED_SHAPES[-1]
        for width in (width for width in SHORTER if sessions and width < min(longest, self.max_length)):
            with suppress(Exception):  # each runtime has its own
                for session in sessions:
                    session.run(self._feed(rows, width), [each.name for each in session.outputs])
                return f"Texts of {width} tokens do not fail. Pass --max-length {width}, or --exporter optimum."
        return "Short texts fail too. Pass --exporter optimum, and please report the architecture."

    def _feed(self, rows: int, width: int) -> dict[str, NDArray[Any]]:
        # Any token id would do; the token type 0 exists in every model.
        tokens: dict[str, NDArray[Any]] = {
            name: np.full(rows * width, 0 if name == names.TOKEN_TYPE_IDS else 1, np.int32) for name in self.inputs
        }
        if self.vectors:
            tokens[names.LABEL_VECTORS] = np.ones((rows, 1, self.vectors), np.float32)
        shape = [[width]] * rows if self.item_rank == 1 else [[1, width]] * rows
        return {**tokens, names.ITEM_SHAPE: np.array(shape, np.int32)}


def _milliseconds(times: Mapping[Name, Mapping[str, Sequence[float]]]) -> dict[Name, dict[str, float]]:
    """Return the least time of each shape: other processes can only add to a time."""
    return {
        name: {shape: round(1e3 * min(seconds), 3) for shape, seconds in each.items()} for name, each in times.items()
    }


def near_tie(times: Mapping[Runtime, Mapping[str, Sequence[float]]]) -> tuple[Runtime, ...]:
    """Return the fastest runtime and all runtimes that are nearly as fast, in the order of ENCODER_RUNTIMES.

    `times` has the seconds of each round by shape. The fastest runtime counts as faster than another only if it is
    faster by the factor NEAR in each part of the rounds, in the geometric mean of the least times. Other processes that
    disturb one part thus decide nothing, and a model gets the same runtime at each export.
    """

    def mean(name: Runtime, part: int, parts: int) -> float:
        rounds = times[name].values()
        return statistics.geometric_mean(
            min(each[part * len(each) // parts : (part + 1) * len(each) // parts]) for each in rounds
        )

    parts = min(PARTS, *(len(each) for shapes in times.values() for each in shapes.values()))
    best = min(times, key=lambda name: mean(name, 0, 1))
    bounds = [NEAR * mean(best, part, parts) for part in range(parts)]
    near = [name for name in times if any(mean(name, part, parts) <= bound for part, bound in enumerate(bounds))]
    return tuple(name for name in ENCODER_RUNTIMES if name in near)


@contextmanager
def other_work() -> Iterator[Callable[[], float]]:
    """Yield a function that returns how many cores other processes have used since the block began.

    It returns 0 if /proc/stat can't be read.
    """
    began, busy, own = time.perf_counter(), _busy_seconds(), time.process_time()
    yield lambda: round(max(0.0, _busy_seconds() - busy - time.process_time() + own) / (time.perf_counter() - began), 1)


def _busy_seconds() -> float:
    """Return the busy seconds of all cores of the machine since it was started; 0 if /proc/stat can't be read."""
    try:
        user, nice, system, _, _, *others = map(int, STAT.read_text().partition("\n")[0].split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def last_line(error: Exception, folder: Path) -> str:
    """Return the last line of a runtime's exception, which has the reason; files in `folder` have no path in it."""
    lines = [line.strip() for line in str(error).replace(f"{folder}/", "").splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def interleave(ways: Mapping[Name, Callable[[], object]]) -> dict[Name, list[float]]:
    """Return the seconds of each of `ways` in each round. They run in turn, so that a noisy machine disturbs all alike.

    One uncounted round to warm up and at least one counted round are always run. ROUNDS are enough if the fastest is
    clearly faster than each other.
    """
    for run in ways.values():
        run()  # shapes are prepared at their first run
    times: dict[Name, list[float]] = {name: [] for name in ways}
    begin = time.perf_counter()
    for number in itertools.count(1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
        passed = time.perf_counter() - begin
        if passed > SECONDS_A_SHAPE or (number >= ROUNDS and (passed > SETTLED_SECONDS or is_clear(times))):
            return times
    raise AssertionError


def is_clear(times: Mapping[Name, Sequence[float]]) -> bool:
    """Return whether one of `times` is less than all others by the factor CLEAR in each part of the rounds."""
    parts = {name: [min(part) for part in np.array_split(seconds, PARTS)] for name, seconds in times.items()}
    best = min(parts, key=lambda name: min(parts[name]))
    others = [least for name, least in parts.items() if name != best]
    return all(CLEAR * own <= least for each in others for own, least in zip(parts[best], each, strict=True))


def online_fusions(path: Path) -> dict[str, int]:
    """Return operator -> count of the fused (contrib) operators that ONNX Runtime makes of the file at its full level.

    The result is empty if the file is larger than LARGEST_BYTES.
    """
    import onnx
    import onnxruntime

    if path.stat().st_size > LARGEST_BYTES:
        return {}
    with tempfile.TemporaryDirectory(prefix="hfx-fusions-") as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        options.log_severity_level = 3  # hides the warning that the file is for this machine only: it is deleted here
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
    return dict(sorted(Counter(node.op_type for node in optimized.graph.node if node.domain == CONTRIB).items()))
