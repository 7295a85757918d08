"""The measuring parts of the benchmarks: loads, limits of the machine, processes of peers, a command."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper, save

from bench import generate
from bench.cases import Case, Texts
from bench.checkpoints import checkpoint
from bench.child import Child, PeerFailed
from bench.client import Record, drive, summary
from bench.figures import load
from bench.peers import Model
from bench.peers.transformers_api import Embedding
from bench.roofline import Rates, Weights, share_of_limit, weights_of
from hfx.errors import UsageError
from hfx.perf.load import Closed, Open

RATES = Rates(1e9, 1e12, 4e12)


def test_only_weights_of_products_count_as_read(tmp_path: Path) -> None:
    def tensor(name: str, kind: int, dims: list[int]) -> Any:
        return helper.make_tensor(name, kind, dims, [1] * math.prod(dims))

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    nodes = [
        helper.make_node("Gather", ["rows", "ids"], ["x1"]),
        helper.make_node("Cast", ["w8"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x1", "w"], ["x2"]),
        helper.make_node("Int8LinearGelu", ["x2", "packed"], ["y"], domain="hfx"),
    ]
    weights = [tensor("rows", TensorProto.FLOAT, [50, 4]), tensor("w8", TensorProto.INT8, [4, 6]),
               tensor("packed", TensorProto.INT8, [1, 2, 6, 4])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [*ends[:1], helper.make_tensor_value_info("ids", TensorProto.INT64, None)],
                              ends[1:], weights)  # fmt: skip
    save(helper.make_model(graph), tmp_path / "g.onnx")
    assert weights_of(tmp_path / "g.onnx") == Weights(72.0, 72.0, integers=True)


@pytest.mark.parametrize(
    ("weights", "load", "share"),
    [
        ((Weights(1e9, 1e9), Weights()), (1.0, 1.0, 10.0, 0.0), 1.0),  # one row: a second to read
        ((Weights(1e9, 1e9), Weights()), (1000.0, 1.0, 10.0, 0.0), 0.02),  # 10 tokens of 2e9 operations at 1e12/s
        ((Weights(1e9, 1.0), Weights(1e9, 1.0)), (2.0, 0.1, 10.0, 8.0), 0.5),  # a prompt and 8 tokens: 1 + 8 / 2 s
    ],
)
def test_one_row_is_limited_by_memory_and_many_rows_by_arithmetic(
    weights: Any, load: tuple[float, ...], share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.roofline._graphs", lambda *place: weights)
    assert share_of_limit(tmp_path, "m", RATES, *load) == pytest.approx(share)


@pytest.mark.parametrize("plan", [Closed(3), Open(arrivals="burst"), Open(rate=500.0)])
def test_every_request_of_a_load_is_sent_once(plan: Closed | Open) -> None:
    sent: list[int] = []

    async def send(number: int, record: Record) -> None:
        sent.append(number)
        await asyncio.sleep(0.001)
        record.messages.append(record.due + 0.01)
        record.tokens = 2

    records = asyncio.run(drive(send, plan, 7))
    assert sorted(sent) == list(range(7))
    assert summary(records)["p99 ms"] == pytest.approx(10.0)


def test_a_failed_request_gives_no_figures() -> None:
    async def send(number: int, record: Record) -> None:
        raise OSError("gone")

    with pytest.raises(ValueError, match="OSError: gone"):
        summary(asyncio.run(drive(send, Closed(1), 2)))


def opened(factor: int) -> Any:
    """Open a candidate for the tests below."""
    if factor < 0:
        raise ValueError("no such factor")
    return lambda case: lambda: factor * case


def test_a_process_answers_cases_and_outlives_one_that_fails() -> None:
    with Child(opened, factor=3) as child:
        assert child.run(2, seconds=0.01).value == 6
        with pytest.raises(PeerFailed, match="TypeError"):
            child.run({})  # not hashable
        assert child.run(5, warm=False).value == 15


def test_a_candidate_that_cannot_be_opened_raises_the_reason() -> None:
    with pytest.raises(PeerFailed, match="ValueError: no such factor"):
        Child(opened, factor=-1)


def test_texts_have_exactly_so_many_tokens() -> None:
    def tokens(text: str) -> int:  # words of more than four letters are several
        return 2 + sum((len(word) + 3) // 4 for word in text.split())

    requests = Case("c", Closed(1), Texts(lengths="fixed:64"), requests=5, new=3).request_set(tokens)
    assert requests.description == "synthetic texts of 64 tokens, max_tokens=3, min_tokens=3"
    assert {tokens(str(each.inputs["text_input"][0])) for each in requests.items} == {64}
    with pytest.raises(UsageError, match="exactly 1 tokens"):
        Case("c", Closed(1), Texts(lengths="fixed:1"), requests=1).request_set(tokens)


@pytest.mark.parametrize(
    ("name", "kind", "auto_class"),
    [
        ("minilm-l6", "embedder", "AutoModel"),
        ("distilbert-base", "classifier", "AutoModelForSequenceClassification"),
        ("distilgpt2", "decoder", "AutoModelForCausalLM"),
        ("flan-t5-base", "encoder-decoder", "AutoModelForSeq2SeqLM"),
    ],
)
def test_the_kind_of_a_checkpoint_is_read_from_its_architecture(name: str, kind: str, auto_class: str) -> None:
    model = Model.of(checkpoint(name, tiny=True))
    assert (model.kind, model.transformers_class) == (kind, auto_class)


def test_a_vector_is_the_mean_of_the_tokens_of_its_text() -> None:
    texts = ("one", "more words than in the other")
    embedding = Embedding(Model.of(checkpoint("minilm-l6", tiny=True)), lambda tensors: tensors["input_ids"][..., None])
    alone = [float(embedding.vectors([text])[0, 0]) for text in texts]
    assert embedding.vectors(texts)[:, 0].tolist() == pytest.approx(alone)


@pytest.mark.slow
def test_a_command_measures_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "f.jsonl"
    words = ["gpt2", "--quick", "--ways", "torch fp32", "--output", str(output)]
    assert generate.command.run("generate", generate.WORKS, words) == 0
    assert "| torch fp32 |" in capsys.readouterr().out
    assert load(output)["gpt2"].median("torch fp32", "8 to 8 tokens, 1 row", "tokens/s")
