"""Responses to many requests: waiting pieces are joined, the order is fair, and each request ends once."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest

from hfx.python_backends.errors import StepFailed
from hfx.python_backends.generation.pieces import Piece
from hfx.python_backends.serving.cancellation_poller import LONGEST, MOST, SHORTEST, CancellationPoller
from hfx.python_backends.serving.dispatcher import COALESCED_AT_ONCE, LONGEST_PAUSE, ResponseWriter
from hfx.python_backends.serving.request import GenerateRequest
from tests.rigs.servers.serving_channels import Caller, outputs


def opened() -> tuple[GenerateRequest, Caller]:
    caller = Caller()
    return GenerateRequest(caller), caller


def send_all(responses: ResponseWriter) -> None:
    for request in responses.take():
        responses.send(request)


def begun() -> tuple[ResponseWriter, GenerateRequest, Caller]:
    """Return a writer in a long pause, and a request whose first piece, "a", is sent."""
    responses, (first, caller) = ResponseWriter(), opened()
    responses.put(first, [Piece("a")])
    send_all(responses)
    responses.throttle(10_000)
    return responses, first, caller


def test_waiting_pieces_are_joined_into_one_response() -> None:
    responses, (one, caller) = ResponseWriter(), opened()
    responses.put(one, [Piece("a", output_tokens=1, log_probs=(-1.0,))])
    responses.put(one, [Piece("b", output_tokens=2, log_probs=(-2.0,))])
    responses.put(one, [Piece("", finish_reason="stop", output_tokens=3, log_probs=(-3.0,))])
    send_all(responses)
    assert caller.outputs == [outputs("ab", finish_reason="stop", output_tokens=3, log_probs=(-1.0, -2.0, -3.0))]


@pytest.mark.parametrize("failure", [None, StepFailed("the step failed")])
def test_nothing_is_sent_after_the_final_response(failure: StepFailed | None) -> None:
    responses, (one, caller) = ResponseWriter(), opened()
    responses.put(one, [Piece("a", finish_reason=None if failure else "stop")], failure)
    responses.put(one, [Piece("b", finish_reason="length")])
    responses.put(one, [], StepFailed("again"))
    for _ in range(3):
        send_all(responses)
    assert (caller.text, caller.codes, caller.finals) == ("a", ["INTERNAL"] if failure else [], 1)


def test_pieces_before_an_error_are_sent_before_it() -> None:
    responses, first, caller = begun()
    responses.put(first, [Piece("b")])
    responses.put(first, [], StepFailed("the step failed"))
    send_all(responses)
    assert (caller.text, caller.finals) == ("ab", 1)


def test_first_and_last_pieces_do_not_wait_for_the_end_of_a_pause() -> None:
    responses, old, old_caller = begun()
    new, new_caller = opened()
    responses.put(old, [Piece("b")])
    responses.put(new, [Piece("c")])
    send_all(responses)
    assert (old_caller.text, new_caller.text) == ("a", "c")
    responses.put(old, [Piece("d", finish_reason="stop")])
    send_all(responses)
    assert old_caller.text == "abd"


def test_responses_go_out_in_the_order_they_came() -> None:
    responses = ResponseWriter()
    requests = [opened()[0] for _ in range(20)]
    for each in requests:
        responses.put(each, [Piece("a")])
    send_all(responses)
    order = random.Random(0).sample(requests, len(requests))
    for each in order:
        responses.put(each, [Piece("b")])
        responses.put(order[0], [Piece("c")])
    taken: list[GenerateRequest] = []
    while some := responses.take():
        assert len(some) <= COALESCED_AT_ONCE  # a first piece that arrives now waits for no other piece
        taken += some
    assert taken == order


def test_taking_everything_ignores_the_pauses() -> None:
    responses, first, caller = begun()
    responses.put(first, [Piece("b")])
    assert responses.take() == []
    for request in responses.take(all_of_them=True):
        responses.send(request)
    assert caller.text == "ab"


def test_the_writer_waits_only_while_pieces_are_held_back() -> None:
    responses, first, _ = begun()
    assert responses.wait() is None
    responses.put(first, [Piece("b")])
    assert 0 < (responses.wait() or 0) <= LONGEST_PAUSE
    responses.put(first, [Piece("c", finish_reason="stop")])
    assert responses.wait() == 0


# Which requests are polled for cancellation


@dataclass(eq=False)
class Open:
    ended: bool = False
    polls: int = 0


@pytest.mark.parametrize(
    ("count", "period"), [(1, SHORTEST), (7, SHORTEST), (150, 150 / MOST), (600, 600 / MOST), (3000, LONGEST)]
)
def test_each_request_is_polled_once_a_period(count: int, period: float) -> None:
    poller: CancellationPoller[Open] = CancellationPoller()
    requests = [Open() for _ in range(count)]
    for request in requests:
        poller.add(request)
    begin, looks, periods = time.monotonic(), 180, 30
    for look in range(looks):
        due = poller.due(begin + look * periods * period / looks)
        assert len(set(map(id, due))) == len(due) <= count / (looks / periods) + 2 or look == 0
        for request in due:
            request.polls += 1
    assert all(0.8 * periods <= request.polls <= periods + 2 for request in requests)


def test_a_request_that_is_over_is_forgotten() -> None:
    poller: CancellationPoller[Open] = CancellationPoller()
    gone, stays = Open(ended=True), Open()
    poller.add(gone)
    poller.add(stays)
    now = time.monotonic()
    polled = [request for look in range(3) for request in poller.due(now + look * LONGEST)]
    assert polled and set(map(id, polled)) == {id(stays)}
    assert len(poller) == 1
