"""One trace of a request from the front through Triton's queue and all steps of a model, for sampled requests only."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.conftest import publish
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.clients.dialect_calls import call
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import RUNTIMES, SLOTS, WRITERS
from tests.rigs.servers.otlp_collector import Collector, Span, collector
from tests.rigs.servers.serve_process import ServeProcess, serving

pytestmark = pytest.mark.triton
MODEL = "sentiment-fp32"
GENERATOR = "stories"
STEPS = {f"{MODEL}_tokenize", f"{MODEL}_net", f"{MODEL}_postprocess"}
TRACE, PARENT = "1234567890abcdef1234567890abcdef", "fedcba0987654321"
INFER = {"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["a lovely garden"]}]}


@pytest.fixture(scope="module")
def collected() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collected: Collector) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("repository")
    publish(MODEL, folder)
    export_zoo(WRITERS[GENERATOR], folder, GENERATOR, "int8", RUNTIMES[GENERATOR], slots=SLOTS[GENERATOR])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # ms, in place of 5 s, until Triton sends its spans
        with serving(folder, "--steps", "python", "--otlp-endpoint", collected.url) as running:
            yield running


@pytest.mark.parametrize(
    ("path", "body", "route"),
    [
        (f"/v2/models/{MODEL}/infer", INFER, "/v2/models/{model}/infer"),
        ("/predict", {"inputs": "a lovely garden"}, "/predict"),
    ],
)
def test_one_trace_has_the_front_and_every_step(
    path: str, body: object, route: str, server: ServeProcess, collected: Collector
) -> None:
    collected.spans.clear()
    assert call(server, path, body, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})[0] == 200
    expected = {f"POST {route}", "InferRequest", MODEL, *STEPS, "compute"}
    wait_until(lambda: expected <= {span.name for span in collected.spans})
    spans = {span.name: span for span in collected.spans}
    assert {span.trace for span in collected.spans} == {TRACE}
    assert spans[f"POST {route}"].parent == PARENT
    assert spans["InferRequest"].parent == spans[f"POST {route}"].id
    assert spans[MODEL].parent == spans["InferRequest"].id
    assert {spans[step].parent for step in STEPS} == {spans[MODEL].id}
    assert "QUEUE_START" in spans[f"{MODEL}_net"].events and "COMPUTE_START" in spans["compute"].events
    assert (spans["InferRequest"].service, spans[f"POST {route}"].service) == ("triton", "hfx")


def test_triton_traces_no_request_that_the_front_does_not(server: ServeProcess, collected: Collector) -> None:
    collected.spans.clear()
    for flags in ("00", "01"):
        trace = {"traceparent": f"00-{TRACE[:-2]}{flags}-{PARENT}-{flags}"}
        assert call(server, f"/v2/models/{MODEL}/infer", INFER, headers=trace)[0] == 200
    wait_until(lambda: [span for span in collected.spans if span.name == MODEL])
    assert {span.trace for span in collected.spans} == {f"{TRACE[:-2]}01"}


@pytest.mark.parametrize(("number", "wanted"), [(0, {"stream": True}), (1, {}), (2, {"n": 2, "temperature": 1})])
def test_a_text_has_spans_of_its_queue_prefill_and_decode(
    number: int, wanted: dict[str, object], server: ServeProcess, collected: Collector
) -> None:
    trace, texts = f"{TRACE[:-1]}{number}", 2 if "n" in wanted else 1
    body = {"model": GENERATOR, "prompt": "Anna was", "max_tokens": 5, **wanted}
    headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
    assert httpx.post(f"{server.http_url}/v1/completions", json=body, headers=headers, timeout=60).status_code == 200

    def spans(name: str) -> list[Span]:
        return [span for span in collected.spans if span.trace == trace and span.name == name]

    wait_until(lambda: len(spans("decode")) == texts and spans("InferRequest"))
    of_triton = {span.id for span in collected.spans if span.trace == trace and span.service == "triton"}
    for name in ("queue", "prefill", "decode"):
        assert len(spans(name)) == texts
        assert {span.service for span in spans(name)} == {"hfx"}
        assert {span.parent for span in spans(name)} <= of_triton
    assert all(int(span.attributes["gen_ai.usage.input_tokens"]) > 0 for span in spans("prefill"))
    assert sum(int(span.attributes["gen_ai.usage.output_tokens"]) for span in spans("decode")) == 5 * texts
    assert {span.events for span in spans("decode")} == {("first token",)}
