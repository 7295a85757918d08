"""Callers that disconnect midway: their slots become free, and the texts of other callers are unchanged."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

import pytest

from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.reciting_generator import ENDLESS, Recital
from tests.rigs.clients.generation_grpc import grpc_events, grpc_request, grpc_stub
from tests.rigs.clients.generation_requests import TIMEOUT, Answer, Ask
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import RECITAL, SLOTS, STREAMS, all_free, metrics, streamed

pytestmark = pytest.mark.triton

STREAMED = 96
AT_A_TIME = 48  # fewer than the engine accepts: no request is refused
# Longer than a disconnected caller may hold a slot, far shorter than ENDLESS takes under any load.
SOON = 5.0

LEAVER = """
import sys
import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

channel = grpc.insecure_channel(sys.argv[1])
stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
requests = [service_pb2.ModelInferRequest.FromString(bytes.fromhex(each)) for each in sys.argv[3:]]
if sys.argv[2] == "unary":
    calls = [stub.ModelInfer.future(request) for request in requests]
else:
    calls = [stub.ModelStreamInfer(iter([request])) for request in requests]
    for call in calls:
        next(call)
print("begun", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Caller:
    """One of the callers: its kind of stream, and after how many pieces it disconnects (None: never)."""

    number: int
    door: str
    leaves_after: int | None

    @property
    def ask(self) -> Ask:
        # HTTP does not report a caller that disconnects before the first piece: such a request ends by itself.
        settings = ENDLESS if self.leaves_after else {"max_tokens": 40 + self.number}
        return Ask(RECITAL, "a" * (1 + self.number % 16), settings)


def callers() -> list[Caller]:
    draw = random.Random(4)
    leaves = [None, 0, None, 1, None, -1, None, -1]
    chosen = [
        Caller(
            number,
            draw.choice(list(STREAMS)),
            draw.randrange(2, 40) if leaves[number % 8] == -1 else leaves[number % 8],
        )
        for number in range(STREAMED)
    ]
    draw.shuffle(chosen)
    return chosen


def cancelled(server: EmbeddedServer) -> float:
    return metrics(server, RECITAL)["hfx_requests_cancelled_total"]


def call(server: EmbeddedServer, caller: Caller) -> Answer | None:
    """Return the whole answer of a caller that does not disconnect."""
    if caller.leaves_after is None:
        return streamed(STREAMS[caller.door])(server, caller.ask)
    with STREAMS[caller.door](server, caller.ask) as events:
        assert len(list(islice(events, caller.leaves_after))) == caller.leaves_after
    return None


def test_abandoned_streams_free_their_slots_and_change_no_other_text(
    writing_server: EmbeddedServer, recital: Recital
) -> None:
    before = cancelled(writing_server)
    everybody = callers()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        answers = list(pool.map(lambda caller: call(writing_server, caller), everybody))
    stayed = [(caller, answer) for caller, answer in zip(everybody, answers, strict=True) if answer is not None]
    assert len(stayed) == STREAMED / 2
    for caller, answer in stayed:
        assert answer.text == recital.text(str(caller.ask.text), caller.ask.settings["max_tokens"])
    wait_until(lambda: all_free(writing_server, RECITAL), "all slots of the engine are free", SOON)
    seen_leaving = sum(bool(caller.leaves_after) for caller in everybody)
    wait_until(lambda: cancelled(writing_server) >= before + seen_leaving, "their requests are counted", SOON)
    assert cancelled(writing_server) <= before + STREAMED / 2


def test_requests_are_cancelled_by_their_ids(writing_server: EmbeddedServer) -> None:
    """Running and queued requests are cancelled; the cancelling request has an answer of its own."""
    ids, model = [f"mine-{number}" for number in range(3 * SLOTS[RECITAL])], f"{RECITAL}_stream"
    before = cancelled(writing_server)
    running = [grpc_request(model, {"text_input": "a", **ENDLESS}, request_id) for request_id in ids]
    cancelling = [grpc_request(model, {"text_input": "", "cancel_request": request_id}) for request_id in reversed(ids)]
    with grpc_stub(writing_server) as stub, ThreadPoolExecutor(1) as pool:
        answers = pool.submit(lambda: [*grpc_events(stub.ModelStreamInfer(iter(running), timeout=TIMEOUT))])
        waiting = len(ids) - SLOTS[RECITAL]
        wait_until(lambda: metrics(writing_server, RECITAL)["hfx_queue_length"] == waiting, "the engine has them")
        controls = [*grpc_events(stub.ModelStreamInfer(iter(cancelling), timeout=TIMEOUT))]
        assert [answer["finish_reason"] for answer in answers.result()] == ["cancelled"] * len(ids)
    assert [(answer["finish_reason"], answer["text_output"]) for answer in controls] == [("cancelled", "")] * len(ids)
    wait_until(lambda: cancelled(writing_server) >= before + len(ids), "the requests are counted", SOON)


def killed_midway(server: EmbeddedServer, requests: int, *command: str) -> None:
    """Send SIGKILL to the client `command` while the engine works on its `requests`; all must be cancelled soon."""
    expected = cancelled(server) + requests
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process, ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout is not None and process.stdout.readline()
        wait_until(
            lambda: metrics(server, RECITAL)["hfx_slots_used"] == min(requests, SLOTS[RECITAL]), "slots are taken"
        )
        process.kill()
        wait_until(lambda: all_free(server, RECITAL), "the slots of the killed client are free", SOON)
    wait_until(lambda: cancelled(server) >= expected, "its requests are counted", SOON)


# Streams that wait in the queue have no first piece, which is waited for: one for each slot.
@pytest.mark.parametrize(
    ("kind", "model", "requests"), [("stream", f"{RECITAL}_stream", SLOTS[RECITAL]), ("unary", RECITAL, 10)]
)
def test_a_killed_grpc_client_frees_its_slots(
    kind: str, model: str, requests: int, writing_server: EmbeddedServer
) -> None:
    fields = {"text_input": "a", **ENDLESS, **({"stream": True} if kind == "stream" else {})}
    sent = [grpc_request(model, fields).SerializeToString().hex()] * requests
    killed_midway(writing_server, requests, sys.executable, "-c", LEAVER, writing_server.grpc_url, kind, *sent)


def test_a_killed_curl_frees_its_slot(writing_server: EmbeddedServer) -> None:
    url = f"{writing_server.http_url}/v2/models/{RECITAL}_stream/generate_stream"
    body = json.dumps({"text_input": "a", "stream": True, **ENDLESS})
    killed_midway(writing_server, 1, "curl", "--silent", "--no-buffer", "--data", body, url)
