"""Differences of Triton's statistics between two times: requests, batches and times of a model and its members.

The statistics are read over gRPC, so that a measurement needs only one address.
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
SETTLED_SECONDS = 0.3  # Triton may count a relay's request this long after its answer
LATEST_SECONDS = 3.0
DEVICES = {configuration.ModelInstanceGroup.KIND_GPU: "gpu", configuration.ModelInstanceGroup.KIND_CPU: "cpu"}
MILLION = 1e6  # nanoseconds in a millisecond


# Totals of a model since it was loaded: requests, rows, executions, and nanoseconds in each phase.
Counts = Counter[str]
Snapshot = Mapping[str, Counts]


class Statistics:
    """A connection for a server's statistics; a context manager. Methods raise ServerUnreachable and ServerError."""

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
        """Return the models that compute for `model`: an ensemble's members, or itself and its engine (NAME_stream)."""
        config = self._get("get_model_config", model).config
        steps = [step.model_name for step in config.ensemble_scheduling.step]
        return tuple(dict.fromkeys(steps)) or (model, model.removesuffix(STREAM_SUFFIX) + STREAM_SUFFIX)

    def device(self, model: str) -> str:
        """Return "gpu" or "cpu", by the instances of the `members` of `model`; empty if neither is configured."""
        kinds = set()
        for name in self.snapshot().keys() & self.members(model):
            config = self._get("get_model_config", name).config
            kinds |= {group.kind for group in config.instance_group}
        return next((device for kind, device in DEVICES.items() if kind in kinds), "")

    def snapshot(self) -> Snapshot:
        """Return the current statistics of all models."""
        found: dict[str, Counts] = {}
        for each in self._get("get_inference_statistics").model_stats:
            found.setdefault(each.name, Counts()).update(_counts(each))  # adds up the versions
        return found

    def settled(self) -> Snapshot:
        """Return the statistics, once two consecutive snapshots are equal, or after SETTLED_SECONDS."""
        deadline = time.monotonic() + SETTLED_SECONDS
        before, now = None, self.snapshot()
        while before != now and time.monotonic() < deadline:
            time.sleep(2 * POLL_SECONDS)
            before, now = now, self.snapshot()
        return now

    def counted(self, model: str, before: Snapshot, requests: int) -> Snapshot:
        """Return the statistics once `model` has `requests` more than in `before`, or once they no longer change."""
        wanted = requests_of(before, model) + requests
        latest = (changed := time.monotonic()) + LATEST_SECONDS
        now = self.snapshot()
        while requests_of(now, model) < wanted and time.monotonic() < min(latest, changed + SETTLED_SECONDS):
            time.sleep(POLL_SECONDS)
            last, now = now, self.snapshot()
            changed = changed if now == last else time.monotonic()
        return now

    def _get(self, method: str, *arguments: str) -> Any:
        try:
            return getattr(self._client, method)(*arguments, client_timeout=ANSWER_SECONDS)
        except InferenceServerException as error:
            kind = ServerUnreachable if error.status() == "StatusCode.UNAVAILABLE" else ServerError
            raise kind(f"{self.url} gives no statistics: {error.message()}.") from error


def requests_of(snapshot: Snapshot, model: str) -> int:
    """Return the number of requests in `snapshot` that `model` has answered since it was loaded."""
    return snapshot[model]["requests"] if model in snapshot else 0


def steps(before: Snapshot, after: Snapshot, members: Sequence[str]) -> tuple[Step, ...]:
    """Return a Step for each of `members` between two snapshots, unless it was idle or was reloaded meanwhile."""
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
