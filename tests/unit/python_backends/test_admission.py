"""The requests that an encoder's tokenizing step accepts, by the server's metrics about the net's queue."""

from __future__ import annotations

import pytest

from hfx.python_backends.admission import (
    STALE_SECONDS,
    Admission,
    Bound,
    NetLoad,
    metrics_address,
    net_load,
    net_of,
    samples,
)


class Net:
    """A net of one instance as the server's metrics describe it: runs of 8 rows that take `seconds`."""

    def __init__(self, bound: Bound, seconds: float = 1.0) -> None:
        self.admission = Admission(bound, self.wake)
        self.seconds, self.now, self.woken, self.runs, self.pending = seconds, 0.0, 0, 0, 0
        self.read()

    def wake(self) -> None:
        self.woken += 1

    def read(self, pending: int | None = None, runs: int = 0, ahead: int = 0) -> None:
        """Read the metrics after `runs` further runs of 8 single-row requests; `ahead` requests wait for tokenizing."""
        self.pending = self.pending if pending is None else pending
        self.runs += runs
        requests = 8.0 * self.runs
        load = NetLoad(self.pending, requests, self.runs, requests, 1e6 * requests * self.seconds, ahead)
        self.admission.update(load, self.admission.taken, self.now)

    def take(self, requests: int, rows: int = 1) -> int:
        """Return how many of `requests` requests are accepted now."""
        return sum(self.admission.take(rows, self.now) for _ in range(requests))


def test_requests_are_accepted_until_the_queue_bound() -> None:
    net = Net(Bound(requests=50, seconds=0, batch=8))
    assert net.take(200) == 50
    net.read(pending=50)
    assert net.take(10) == 0
    net.read(pending=42, runs=1)
    assert net.take(20) == 8


def test_requests_are_taken_while_they_would_be_answered_in_time() -> None:
    net = Net(Bound(requests=0, seconds=10, batch=8), seconds=1.0)  # 8 rows a second
    net.read(runs=1)
    taken = net.take(500)
    assert taken == 65  # (10 - 2) * 8: two runs of a second are beside those that wait


def test_a_full_batch_is_taken_however_slow_the_net_is() -> None:
    net = Net(Bound(requests=0, seconds=1, batch=64), seconds=30.0)
    net.read(runs=1)
    assert net.take(200) == 64
    net.read(pending=64)
    assert net.take(200) == 0
    net.read(pending=24)  # 40 of them run, or are answered
    assert net.take(200) == 40


def test_requests_of_many_rows_count_as_many() -> None:
    net = Net(Bound(requests=0, seconds=10, batch=8), seconds=1.0)
    net.read(runs=1)
    assert net.take(500, rows=4) == 17


def test_a_request_whose_timeout_is_shorter_than_the_wait_is_refused() -> None:
    net = Net(Bound(requests=0, seconds=10, batch=64), seconds=1.0)
    net.read(runs=1)
    assert net.take(32) == 32
    assert not net.admission.take(1, net.now, timeout=5.5)  # two runs of a second and 32 rows, 8 a second
    assert net.admission.take(1, net.now, timeout=6.5)


def test_without_readings_nothing_is_refused() -> None:
    never = Admission(Bound(requests=1, seconds=1, batch=1), lambda: None)
    assert all(never.take(1, 0.0) for _ in range(20_000))
    net = Net(Bound(requests=20, seconds=0, batch=8))
    net.take(100)
    net.now += 2 * STALE_SECONDS
    assert net.take(100) == 100


def test_few_requests_cause_no_reading_of_the_metrics() -> None:
    net = Net(Bound(batch=8))
    net.take(16)
    assert net.woken == 0
    net.take(1)
    assert net.woken == 1


def test_requests_to_the_net_itself_and_its_reload_are_allowed_for() -> None:
    net = Net(Bound(requests=50, seconds=0, batch=8))
    net.read(pending=48)
    assert net.take(10) == 2
    net.runs = 0
    net.read(pending=0)
    assert net.take(200) == 50


def test_what_waits_to_be_tokenized_is_bounded_in_seconds() -> None:
    net = Net(Bound(requests=0, seconds=3, batch=8))
    net.admission.tokenized(64, 0.64)
    net.read(ahead=400)
    assert net.take(200) == 101  # as soon as 300 others wait, of 10 ms each
    assert net.woken > 0
    net.read(ahead=300, pending=0)
    assert net.take(10) == 10
    net.read(ahead=400, pending=0)
    net.now += 2 * STALE_SECONDS
    assert net.take(10) == 10


def test_a_long_text_alone_does_not_close_the_tokenizer_to_others() -> None:
    net = Net(Bound(requests=0, seconds=3, batch=8))
    for _ in range(20):
        net.admission.tokenized(1, 0.001)
    net.admission.tokenized(1, 0.5)
    net.read(ahead=30)
    assert net.take(12) == 12


def test_instances_of_the_tokenizing_step_share_what_waits() -> None:
    groups = [{"count": 3}, {}]
    bound = Bound.read({"max_batch_size": 8, "instance_group": groups, "parameters": {}})
    assert (bound.instances, Bound.read({"max_batch_size": 8}).instances) == (4, 1)
    net = Net(bound)
    net.admission.tokenized(64, 0.64)
    net.read(ahead=1100)
    assert net.take(10) == 10
    net.read(ahead=1300, pending=0)
    assert net.take(10) == 0


def test_the_load_counts_the_tokenizing_step_and_its_net_only() -> None:
    text = b"""# HELP nv_inference_pending_request_count x
nv_inference_pending_request_count{model="m_tokenize",version="1"} 7
nv_inference_pending_request_count{model="m_net",version="1"} 3
nv_inference_count{model="m_net",version="1"} 80
nv_inference_exec_count{model="m_net",version="1"} 10
nv_inference_request_success{model="m_net",version="1"} 40
nv_inference_compute_infer_duration_us{model="m_net",version="1"} 4000000
"""
    patterns = samples("m_net"), samples("m_tokenize")
    assert net_load(*patterns, text) == NetLoad(3, 80, 10, 40, 4e6, ahead=7)
    assert net_load(*patterns, b"") is None


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ("tritonserver", ("127.0.0.1", 8002)),
        ("tritonserver --metrics-port=9002 --http-address 10.0.0.1", ("10.0.0.1", 9002)),
        ("tritonserver --metrics-address=0.0.0.0 --metrics-port 9002", ("127.0.0.1", 9002)),
        ("tritonserver --allow-metrics=false", None),
        ("tritonserver --metrics-port=x", None),
    ],
)
def test_the_address_of_the_metrics_is_the_servers_own(arguments: str, address: object) -> None:
    assert metrics_address(arguments.split()) == address


@pytest.mark.parametrize(
    ("model", "net"), [("m_tokenize", "m_net"), ("a_tokenize_b_tokenize_g2", "a_tokenize_b_net_g2")]
)
def test_the_net_is_named_like_its_tokenizing_step(model: str, net: str) -> None:
    assert net_of(model) == net


def test_bounds_are_read_from_the_parameters_of_the_configuration() -> None:
    given = {"max_queue_size": {"string_value": "9"}, "max_queue_seconds": {"string_value": "0.5"}}
    assert Bound.read({"max_batch_size": 8, "parameters": given}) == Bound(9, 0.5, 8)
    assert Bound.read({"max_batch_size": 64}) == Bound()
