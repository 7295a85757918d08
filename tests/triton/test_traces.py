"""One trace of a request from the front through Triton's queue and all steps of a model, sampled requests alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.dialect_calls import call
from tests.rigs.otlp_collector import Collector, collector
from tests.rigs.serve_process import ServeProcess, serving
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.triton
MODEL = "sentiment-fp32"
STEPS = {f"{MODEL}_tokenize", f"{MODEL}_net", f"{MODEL}_postprocess"}
TRACE, PARENT = "1234567890abcdef1234567890abcdef", "fedcba0987654321"
INFER = {"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["a lovely garden"]}]}


@pytest.fixture(scope="module")
def collected() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory, collected: Collector) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("repository")
    for member in (MODEL, *STEPS):
        shutil.copytree(repository / member, folder / member)
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
