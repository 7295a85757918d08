"""perf_analyzer's files: the requests that it is given, when it is to send them, and the record that it writes.

It must not know how the program is run.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hfx.errors import HfxError
from hfx.perf.load import Closed, Plan, RequestSet
from hfx.perf.tools.requested import Asked, callers_of, piece_of

MICRO, NANO = 1e-6, 1e-9
NEVER = 3600.0  # seconds: after the last request; perf_analyzer begins anew otherwise
START_SECONDS = 0.001  # before the first
# A float that JSON does not have is left out by perf_analyzer: `"output_log_probs":,`
LEFT_OUT = re.compile(r'(?<!\\)":(?=[,}\]])')


def write_inputs(asks: RequestSet, path: Path, extra: Mapping[str, Any] | None = None) -> Path:
    """The requests, sent in turn; EXTRA are tensors for each that it does not name itself."""
    shared = {name: (value,) for name, value in (extra or {}).items()}
    data = [
        {
            name: {"content": list(values), "shape": [len(values)]}
            for name, values in (shared | dict(ask.inputs)).items()
        }
        for ask in asks.items
    ]
    path.write_text(json.dumps({"data": data}), encoding="utf-8")
    return path


def write_times(times: Sequence[float], path: Path) -> Path:
    """When each request is sent, in seconds from the start, as the pauses before each in microseconds."""
    pauses = [START_SECONDS, *(later - earlier for earlier, later in itertools.pairwise(times)), NEVER]
    path.write_text("".join(f"{round(pause / MICRO)}\n" for pause in pauses), encoding="utf-8")
    return path


def read_record(path: Path, plan: Plan, times: Sequence[float] = ()) -> list[Asked]:
    """The requests of a record that were answered. Those of an open PLAN were due at TIMES.

    Raises HfxError for a damaged record.
    """
    try:
        [experiment] = _read_json(path)["experiments"]
        asked = [_asked(each) for each in experiment["requests"] if each["response_timestamps"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HfxError(f"perf_analyzer's record can't be read: {error!r}.", "Run it again.") from error
    if isinstance(plan, Closed):
        callers = callers_of([(each.sent, each.end) for each in asked], plan.callers)
        return [replace(each, caller=caller) for each, caller in zip(asked, callers, strict=True)]
    return _due(asked, times)


def _due(asked: list[Asked], times: Sequence[float]) -> list[Asked]:
    """Each with the time when it was to be sent: the clocks of plan and record meet where it was least late."""
    ordered = sorted(asked, key=lambda each: each.sent)
    pairs = list(zip(ordered, times, strict=False))  # an interrupted run has fewer
    start = min((each.sent - at for each, at in pairs), default=0.0)
    return [replace(each, due=start + at) for each, at in pairs]


def _read_json(path: Path) -> Any:
    text = path.read_bytes().decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(LEFT_OUT.sub('":null', text))


def _asked(request: Mapping[str, Any]) -> Asked:
    sent, times = request["timestamp"] * NANO, tuple(at * NANO for at in request["response_timestamps"])
    pieces = tuple(piece_of(outputs) for outputs in request.get("response_outputs", ()))
    return Asked(due=sent, sent=sent, end=times[-1], times=times, pieces=pieces)
