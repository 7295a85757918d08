"""What is sent of the pieces of many requests: joined where they wait, in a fair order, each end once."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest

from hfx.python_backends.engine.errors import StepFailed
from hfx.python_backends.generation.results import Piece
from hfx.python_backends.responses.cancellation_poller import LONGEST, MOST, SHORTEST, CancellationPoller
from hfx.python_backends.responses.response_queue import COALESCED_AT_ONCE, Reply, ResponseQueue
from tests.unit.response_channels import Caller


def reply() -> tuple[Reply, Caller]:
    caller = Caller()
    return Reply(caller), caller


def send_all(responses: ResponseQueue) -> None:
    for each in responses.take(0) or ():
        responses.send(each)


def test_pieces_that_wait_are_one_response() -> None:
    responses, (one, caller) = ResponseQueue(), reply()
    responses.put([(one, [Piece("a", output_tokens=1, log_probs=(-1.0,))], None)])
    responses.put([(one, [Piece("b", output_tokens=2, log_probs=(-2.0,))], None)])
    responses.put([(one, [Piece("", finish_reason="stop", output_tokens=3, log_probs=(-3.0,))], None)])
    send_all(responses)
    assert caller.pieces == [Piece("ab", finish_reason="stop", output_tokens=3, log_probs=(-1.0, -2.0, -3.0))]


@pytest.mark.parametrize("end", ["finish", "error"])
def test_nothing_comes_after_the_end(end: str) -> None:
    responses, (one, caller) = ResponseQueue(), reply()
    failure = StepFailed("the step failed")
    if end == "finish":
        responses.put([(one, [Piece("a", finish_reason="stop")], None)])
    else:
        responses.put([(one, [Piece("a")], failure)])
    responses.put([(one, [Piece("b", finish_reason="length")], None)])
    responses.put([(one, [], StepFailed("again"))])
    for _ in range(3):
        send_all(responses)
    assert caller.text == "a"
    assert caller.errors == ([failure] if end == "error" else [])
    assert caller.finals == 1


def test_pieces_before_an_error_are_sent_before_it() -> None:
    responses, (one, caller) = ResponseQueue(), reply()
    responses.put([(one, [Piece("a")], None)])
    send_all(responses)
    responses.throttle(10_000)
    responses.put([(one, [Piece("b")], None)])
    responses.put([(one, [], StepFailed("the step failed"))])
    send_all(responses)
    assert (caller.text, caller.finals) == ("ab", 1)


def test_first_and_last_pieces_do_not_wait_for_the_rest_to_be_over() -> None:
    responses, (old, old_caller), (new, new_caller) = ResponseQueue(), reply(), reply()
    responses.put([(old, [Piece("a")], None)])
    send_all(responses)
    responses.throttle(10_000)
    responses.put([(old, [Piece("b")], None), (new, [Piece("c")], None)])
    send_all(responses)
    assert (old_caller.text, new_caller.text) == ("a", "c")
    responses.put([(old, [Piece("d", finish_reason="stop")], None)])
    send_all(responses)
    assert old_caller.text == "abd"


def test_replies_go_out_in_the_order_they_came() -> None:
    responses = ResponseQueue()
    replies = [reply()[0] for _ in range(20)]
    for each in replies:
        responses.put([(each, [Piece("a")], None)])
    send_all(responses)
    order = random.Random(0).sample(replies, len(replies))
    for each in order:
        responses.put([(each, [Piece("b")], None)])
        responses.put([(order[0], [Piece("c")], None)])
    taken: list[Reply] = []
    while found := responses.take(0):
        assert len(found) <= COALESCED_AT_ONCE  # a first piece that comes now waits for no more
        taken += found
    assert taken == order


def test_a_closed_outbox_gives_what_it_has_and_ends() -> None:
    responses, (one, caller) = ResponseQueue(), reply()
    responses.put([(one, [Piece("a")], None)])
    send_all(responses)
    responses.throttle(10_000)
    responses.put([(one, [Piece("b")], None)])
    responses.close()
    send_all(responses)
    assert caller.text == "ab"
    assert responses.take(None) is None


def test_take_waits_no_longer_than_it_is_told() -> None:
    assert ResponseQueue().take(0.01) == []


# Who is asked whether the caller has left


@dataclass(eq=False)
class Asked:
    over: bool = False
    times: int = 0


@pytest.mark.parametrize(("count", "period"), [(1, SHORTEST), (7, SHORTEST), (150, 150 / MOST), (600, LONGEST)])
def test_everybody_is_asked_once_a_period(count: int, period: float) -> None:
    poller: CancellationPoller[Asked] = CancellationPoller()
    everybody = [Asked() for _ in range(count)]
    for each in everybody:
        poller.add(each)
    begin, looks, periods = time.monotonic(), 600, 100
    for look in range(looks):
        due = poller.due(begin + look * periods * period / looks)
        assert len(set(map(id, due))) == len(due) <= count / (looks / periods) + 2 or look == 0
        for each in due:
            each.times += 1
    assert all(0.8 * periods <= each.times <= periods + 2 for each in everybody)


def test_who_is_over_is_forgotten() -> None:
    poller: CancellationPoller[Asked] = CancellationPoller()
    gone, stays = Asked(over=True), Asked()
    poller.add(gone)
    poller.add(stays)
    now = time.monotonic()
    asked = [each for look in range(3) for each in poller.due(now + look * LONGEST)]
    assert asked and set(map(id, asked)) == {id(stays)}
    assert len(poller) == 1
