"""Triton's own statistics over a stretch of time: requests, batches and times of a model and its members.

By gRPC, so that a measurement needs one address only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc import model_config_pb2 as configuration
from tritonclient.utils import InferenceServerException

from hfx.client.address import parse_address
from hfx.client.grpc_transport import DIRECT
from hfx.errors import ServerError, ServerUnreachable
from hfx.names import STREAM_SUFFIX
from hfx.perf.results import PHASES, Step

ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.05
SETTLED_SECONDS = 0.3  # Triton counts a relay's request up to so much later than it answers
LATEST_SECONDS = 3.0
DEVICES = {configuration.ModelInstanceGroup.KIND_GPU: "gpu", configuration.ModelInstanceGroup.KIND_CPU: "cpu"}
MILLION = 1e6  # nanoseconds in a millisecond


# Of a model since it was loaded: requests, rows, executions, and nanoseconds of all requests together in each phase.
Counts = Counter[str]
Snapshot = Mapping[str, Counts]


class Statistics:
    """A server's statistics; a context manager. Raises ServerUnreachable, or ServerError for one that has none."""

    def __init__(self, grpc_url: str) -> None:
        address = parse_address(grpc_url)
        self.url = grpc_url
        options = [DIRECT] if address.is_loopback else None
        self._client = InferenceServerClient(address.target, ssl=address.secure, channel_args=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def members(self, model: str) -> tuple[str, ...]:
        """The models that do the work of `model`: an ensemble's steps, or itself and a generator's engine."""
        config = self._get("get_model_config", model).config
        steps = [step.model_name for step in config.ensemble_scheduling.step]
        return tuple(dict.fromkeys(steps)) or (model, model.removesuffix(STREAM_SUFFIX) + STREAM_SUFFIX)

    def device(self, model: str) -> str:
        """`gpu` or `cpu`, by the instances of those that do the work of `model`; empty for neither."""
        kinds = set()
        for name in self.look().keys() & self.members(model):
            config = self._get("get_model_config", name).config
            kinds |= {group.kind for group in config.instance_group}
        return next((device for kind, device in DEVICES.items() if kind in kinds), "")

    def look(self) -> Snapshot:
        """The statistics of all models now."""
        found: dict[str, Counts] = {}
        for each in self._get("get_inference_statistics").model_stats:
            found.setdefault(each.name, Counts()).update(_counts(each))  # adds up the versions
        return found

    def settled(self) -> Snapshot:
        """The statistics once two looks in turn are equal, or after a while if they never are."""
        deadline = time.monotonic() + SETTLED_SECONDS
        before, now = None, self.look()
        while before != now and time.monotonic() < deadline:
            time.sleep(2 * POLL_SECONDS)
            before, now = now, self.look()
        return now

    def counted(self, model: str, before: Snapshot, requests: int) -> Snapshot:
        """The statistics once `model` has done so many `requests` more than `before`, or nothing more is counted."""
        wanted = requests_of(before, model) + requests
        latest = (changed := time.monotonic()) + LATEST_SECONDS
        now = self.look()
        while requests_of(now, model) < wanted and time.monotonic() < min(latest, changed + SETTLED_SECONDS):
            time.sleep(POLL_SECONDS)
            last, now = now, self.look()
            changed = changed if now == last else time.monotonic()
        return now

    def _get(self, method: str, *arguments: str) -> Any:
        try:
            return getattr(self._client, method)(*arguments, client_timeout=ANSWER_SECONDS)
        except InferenceServerException as error:
            kind = ServerUnreachable if error.status() == "StatusCode.UNAVAILABLE" else ServerError
            raise kind(f"{self.url} gives no statistics: {error.message()}.") from error


def requests_of(snapshot: Snapshot, model: str) -> int:
    """The requests that `model` has answered since it was loaded."""
    return snapshot[model]["requests"] if model in snapshot else 0


def steps(before: Snapshot, after: Snapshot, members: Sequence[str]) -> tuple[Step, ...]:
    """What each of `members` did between two looks; without those that did nothing, or were loaded anew meanwhile."""
    done_by = []
    for name in members:
        done = Counts(after.get(name))
        done.subtract(before.get(name))
        if min(done.values(), default=0) >= 0 and done["requests"] and done["executions"]:
            times = {phase: done[phase] / done["requests"] / MILLION for phase in PHASES}
            done_by.append(Step(name, done["rows"], done["executions"], done["rows"] / done["executions"], **times))
    return tuple(done_by)


def _counts(model: Any) -> Counts:
    times = model.inference_stats
    return Counts(
        requests=times.success.count,
        rows=model.inference_count,
        executions=model.execution_count,
        queue=times.queue.ns,
        input=times.compute_input.ns,
        infer=times.compute_infer.ns,
        output=times.compute_output.ns,
    )
