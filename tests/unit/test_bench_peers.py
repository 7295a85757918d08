"""Peers on small trained checkpoints: exact counts, the same answers as torch, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from bench.errors import CaseFailed, PeerFailed
from bench.peers import PEERS, Batch, Opened, open_published, peer_run
from bench.peers.ours import exported
from hfx.errors import FetchFailed
from hfx.names import Task
from hfx.perf.load import Closed, Limits, Open, Request, RequestSet
from hfx.perf.results import Run
from tests import zoo

pytestmark = pytest.mark.slow

TEXTS = ("Anna went to the market with her dog. It rained", "The old house was quiet and", "A friend")
NEW = 12
DECODER, SEQ2SEQ = ("stories-gpt2", Task.TEXT_GENERATION), ("summaries-bart", Task.SUMMARIZATION)
CLASSIFIER = ("sentiment-distilbert", Task.TEXT_CLASSIFICATION)
BEAMS = Batch(TEXTS, 8, beams=2, no_repeat_ngram=3)
Open_ = Callable[[str, tuple[str, str], str], Opened]


@pytest.fixture(scope="module")
def opened() -> Iterator[Open_]:
    """Opens a peer once for each (peer, checkpoint and task, precision)."""
    with ExitStack() as stack:

        @cache
        def make(name: str, model: tuple[str, str], precision: str) -> Opened:
            return stack.enter_context(PEERS[name].open(zoo.checkpoint(model[0]), model[1], precision))

        yield make


@pytest.fixture(scope="module")
def fetched() -> Callable[[str], str]:
    """The name of a peer whose packages are here."""

    def fetch(name: str) -> str:
        try:
            PEERS[name].install()
        except FetchFailed as reason:
            pytest.skip(reason.message)
        return name

    return fetch


@pytest.mark.parametrize(("name", "precision"), [("optimum", "fp32"), ("hfx", "fp32")])
@pytest.mark.parametrize(("model", "batch"), [(DECODER, Batch(TEXTS, NEW)), (SEQ2SEQ, BEAMS)])
def test_texts_are_torchs(
    fetched: Callable[[str], str], opened: Open_, name: str, precision: str, model: tuple[str, str], batch: Batch
) -> None:
    """Ragged texts, the same tokens read, as many written, the same search: so the same words in float32."""
    expected, found = (opened(fetched(each), model, precision).run(batch).answered for each in ("torch", name))
    assert found == expected
    assert found.written == (batch.new_tokens,) * len(TEXTS)


@pytest.mark.parametrize(
    ("name", "precision", "model", "new"),
    [
        ("torch", "bf16", DECODER, 7),
        ("torch", "bf16", SEQ2SEQ, 16),
        ("optimum", "int8", SEQ2SEQ, 16),
        ("hfx", "int8", DECODER, 7),
    ],
)
def test_exactly_so_many_tokens(
    fetched: Callable[[str], str], opened: Open_, name: str, precision: str, model: tuple[str, str], new: int
) -> None:
    found = opened(fetched(name), model, precision).run(Batch(TEXTS, new))
    assert found.written == (new,) * len(TEXTS)
    assert found.seconds > 0 and found.processor is not None and found.memory is not None and found.memory > 30 << 20


@pytest.mark.parametrize(("name", "precision"), [("optimum", "fp32"), ("hfx", "int8")])
def test_labels_are_torchs(fetched: Callable[[str], str], opened: Open_, name: str, precision: str) -> None:
    batch = Batch(tuple(example.text for example in zoo.heldout("sentiment", 40)))
    expected, found = (
        opened("torch", CLASSIFIER, "fp32").run(batch),
        opened(fetched(name), CLASSIFIER, precision).run(batch),
    )
    assert len(set(expected.labels)) > 1
    assert sum(a == b for a, b in zip(found.labels, expected.labels, strict=True)) >= 39
    assert found.written == ()


def test_a_run(opened: Open_) -> None:
    batches = [Batch(TEXTS, 5), Batch(tuple(reversed(TEXTS)), 5)]
    run = peer_run(opened("torch", DECODER, "fp32"), batches, round=2, case="small", seconds=0.05)
    assert isinstance(run, Run)
    calls = run.latency.count if run.latency else 0
    assert calls >= 2
    assert (run.round, run.load.label, run.load.limit) == (2, "small, 3 rows", f"{calls} calls")
    assert (run.subject.label, run.subject.peer, run.subject.protocol) == ("torch fp32", "torch", "process")
    assert run.tokens is not None and run.tokens.each == (5,) * 6
    assert run.tokens.read > 0
    assert run.requests.sent == run.requests.succeeded == 3 * calls
    assert run.tokens_per_second == pytest.approx(5 * run.throughput)
    assert run.server is not None and run.server.cores is not None and run.server.cores > 0
    assert run.notes == ()


def test_a_published_model_as_it_is(opened: Open_) -> None:
    repository = exported(zoo.checkpoint(CLASSIFIER[0]), CLASSIFIER[1], "int8")
    with open_published(repository, CLASSIFIER[0]) as published:
        found = published.run(Batch(TEXTS))
    assert found.labels == opened("torch", CLASSIFIER, "fp32").run(Batch(TEXTS)).labels
    assert published.identity.precision == "int8"
    with pytest.raises(PeerFailed, match="There is no model 'nothing'"):
        open_published(repository, "nothing")


def test_what_can_not_be_asked(opened: Open_) -> None:
    torch = opened("torch", DECODER, "fp32")
    with pytest.raises(PeerFailed, match="can't be asked for labels"):
        torch.run(Batch(TEXTS))
    with pytest.raises(PeerFailed, match="can't be asked for new tokens"):
        opened("torch", CLASSIFIER, "fp32").run(Batch(TEXTS, 4))
    with pytest.raises(PeerFailed, match="needs a text"):
        torch.run(Batch((), 4))
    with pytest.raises(CaseFailed, match="512 positions, too few for 600 new tokens"):
        torch.run(Batch(TEXTS, 600))
    assert torch.run(Batch(TEXTS, 4)).written == (4, 4, 4)  # and goes on
    with pytest.raises(PeerFailed, match="no way to answer requests one by one"):
        torch.load(
            Closed(1), RequestSet((Request({"text_input": ("A",), "max_tokens": (3,)}),), ""), Limits(requests=1)
        )


def test_what_can_not_be_opened(tmp_path: Path) -> None:
    gpt2, classifier = zoo.checkpoint(DECODER[0]), zoo.checkpoint(CLASSIFIER[0])
    with pytest.raises(PeerFailed, match="runs a decoder-only generator in fp32 or bf16, not in int8"):
        PEERS["torch"].open(gpt2, Task.TEXT_GENERATION, "int8")
    with pytest.raises(PeerFailed, match="CTranslate2 runs no classifier"):
        PEERS["ctranslate2"].open(classifier, Task.TEXT_CLASSIFICATION)
    with pytest.raises(PeerFailed, match="not token-classification"):
        PEERS["torch"].open(classifier, Task.TOKEN_CLASSIFICATION)
    with pytest.raises(PeerFailed, match="is of the kind decoder"):
        PEERS["torch"].open(gpt2, Task.SUMMARIZATION)
    with pytest.raises(PeerFailed, match="There is no folder"):
        PEERS["torch"].open(tmp_path / "nothing", Task.TEXT_GENERATION)


@pytest.mark.parametrize("name", ["ctranslate2", "openvino", "mlserver"])
def test_what_is_not_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path))
    assert not PEERS[name].installed
    with pytest.raises(PeerFailed, match=f"`python -m bench.peers install {name}` fetches it"):
        PEERS[name].open(zoo.checkpoint(DECODER[0]), Task.TEXT_GENERATION)


@pytest.mark.parametrize("name", ["ctranslate2", "openvino"])
def test_fetched_libraries(opened: Open_, fetched: Callable[[str], str], name: str) -> None:
    batch = Batch(TEXTS, NEW)
    expected = opened("torch", DECODER, "fp32").run(batch).answered
    assert opened(fetched(name), DECODER, "fp32").run(batch).answered == expected
    assert opened(name, DECODER, "int8").run(batch).written == (NEW,) * 3


@pytest.mark.parametrize("name", ["ctranslate2", "openvino"])
def test_libraries_answer_loads(opened: Open_, fetched: Callable[[str], str], name: str) -> None:
    peer = opened(fetched(name), DECODER, "int8")
    lengths = (8, 3, 12, 5)
    texts = RequestSet(tuple(Request({"text_input": (TEXTS[0],), "max_tokens": (new,)}) for new in lengths), "texts")
    closed = peer.load(Closed(2), texts, Limits(requests=8, warmup_requests=1))
    assert closed.tokens is not None and closed.tokens.each == lengths * 2
    assert closed.throughput > 0 and closed.ttft is not None and closed.tpot is not None
    timed = peer.load(Open(50.0), texts, Limits(requests=10))
    assert timed.requests.succeeded == 10
    assert timed.seconds >= 9 / 50


def test_genai_refuses_what_it_is_not_measured_with(opened: Open_, fetched: Callable[[str], str]) -> None:
    with pytest.raises(CaseFailed, match="greedy answers alone"):
        opened(fetched("openvino"), DECODER, "int8").run(Batch(TEXTS, 4, beams=2))


def test_mlserver(opened: Open_, fetched: Callable[[str], str]) -> None:
    peer = opened(fetched("mlserver"), DECODER, "fp32")
    same = Batch((TEXTS[0],) * 3, NEW)
    run = peer_run(peer, same)
    assert run.tokens is not None and run.tokens.each == (NEW,) * 3
    assert run.subject.protocol == "http"
    expected = opened("torch", DECODER, "fp32").run(same)
    assert peer.run(same).answered.texts == expected.answered.texts
    texts = RequestSet((Request({"text_input": (TEXTS[0],), "max_tokens": (6,), "min_tokens": (6,)}),), "text")
    found = peer.load(Closed(4), texts, Limits(requests=12))
    assert found.requests.succeeded == 12
    assert found.tokens is not None and found.tokens.each == (6,) * 12
    two = RequestSet((*texts.items, Request({"text_input": (TEXTS[0],), "max_tokens": (7,)})), "texts")
    with pytest.raises(PeerFailed, match="answers of one length, not of 6 to 7"):
        peer.load(Closed(1), two, Limits(requests=2))
