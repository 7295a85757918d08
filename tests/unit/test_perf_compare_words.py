"""What the command line names: devices, servers, precisions, variants, peers; and what can't be compared."""

from __future__ import annotations

import pytest

from hfx.errors import UsageError
from hfx.perf.compare.devices import parse_devices, targets
from hfx.perf.compare.peers import batches_of, exact_asks, parse_peers, peer_cases
from hfx.perf.compare.precisions import parse_precisions
from hfx.perf.compare.request import chosen
from hfx.perf.compare.side import Case
from hfx.perf.compare.variants import label_of, parse_variants
from hfx.perf.load import Closed, Limits, Open, Request, RequestSet
from hfx.perf.measuring import MeasureSpec

TEXTS = RequestSet(tuple(Request({"text_input": (text,), "max_tokens": (5,)}) for text in "abc"), "three texts")


def test_devices_are_those_that_there_are():
    assert parse_devices("cpu, gpu") == ("cpu", "gpu")
    for text in ("cpu,tpu", "cpu,cpu", ""):
        with pytest.raises(UsageError, match="can't be compared"):
            parse_devices(text)


def test_a_server_has_a_label_and_an_address():
    found = targets(["cpu=127.0.0.1:8001", "new=host:9001"], "m")
    assert (found["cpu"].grpc_url, found["cpu"].device, found["cpu"].model) == ("127.0.0.1:8001", "cpu", "m")
    assert found["new"].device == ""
    for words in (["cpu"], ["=host:1"], ["cpu=a:1", "cpu=b:1"], ["cpu=http://a:1"]):
        with pytest.raises(UsageError):
            targets(words, "m")


def test_precisions_may_be_names_of_models():
    assert parse_precisions("fp32,int8,other-model") == ("fp32", "int8", "other-model")
    with pytest.raises(UsageError):
        parse_precisions("fp32,fp32")


def test_variants_are_every_combination_in_the_order_of_the_words():
    expected = [
        {"max_queue_delay": 0, "instances": 1},
        {"max_queue_delay": 0, "instances": 2},
        {"max_queue_delay": 500, "instances": 1},
        {"max_queue_delay": 500, "instances": 2},
    ]
    assert parse_variants(["max_queue_delay=0,500us", "instances=1,2"]) == expected
    assert parse_variants(["max_queue_delay=0,500us,instances=1,2"]) == expected
    assert parse_variants(["max_batch=8,16"]) == [{"max_batch_size": 8}, {"max_batch_size": 16}]
    assert label_of(expected[2]) == "max_queue_delay=500us, instances=1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["instances=1"], "makes 1 variants"),
        (["4"], "names no setting"),
        (["instances=1", "instances=2"], "twice"),
        (["colour=red,blue"], "no setting 'colour'"),
        (["instances=1,2s"], "no value of instances"),
        (["slots=" + ",".join(map(str, range(1, 20)))], "makes 19 variants"),
    ],
)
def test_variants_that_can_not_be_are_refused(words: list[str], message: str):
    with pytest.raises(UsageError, match=message):
        parse_variants(words)


def test_peers_have_names_and_may_have_precisions():
    assert parse_peers("torch,ctranslate2:int8") == {"torch": "", "ctranslate2": "int8"}
    for text in ("torch,keras", "torch,torch:bf16"):
        with pytest.raises(UsageError):
            parse_peers(text)


def test_peers_get_the_callers_texts_in_their_order_and_exact_lengths():
    case = peer_cases([Closed(2)], TEXTS, "text-generation", requests=3)[0]
    assert case.order.limits.requests == 4 and case.order.limits.warmup_requests == 2
    assert case.order.asks.items[0].inputs == {"text_input": ("a",), "max_tokens": (5,), "min_tokens": (5,)}
    batches = batches_of(case)
    assert [batch.texts for batch in batches] == [("a", "b"), ("c", "a")]
    assert {(batch.new_tokens, batch.beams, batch.no_repeat_ngram) for batch in batches} == {(5, 1, 0)}


def test_a_length_is_given_where_the_user_gives_none():
    asks = exact_asks(RequestSet((Request({"text_input": ("a",)}),), "a text"), "summarization")
    assert asks.items[0].inputs["min_tokens"] == (50,) and asks.words == "a text, max_tokens=50 exactly"


def test_classifiers_are_asked_as_they_are():
    asks = RequestSet((Request({"text_input": ("a",)}),), "a text")
    assert exact_asks(asks, "text-classification") is asks
    batch = batches_of(Case(Closed(1), MeasureSpec(asks, Limits(requests=1))))[0]
    assert batch.new_tokens is None


def test_what_peers_can_not_be_asked_is_refused():
    for inputs in ({"question": ("a",), "context": ("b",)}, {"text_input": ("a",), "temperature": (0.5,)}):
        with pytest.raises(UsageError, match="can't be asked like this"):
            exact_asks(RequestSet((Request(inputs),), "w"), "text-generation")
    mixed = (Request({"text_input": ("a",), "max_tokens": (5,)}), Request({"text_input": ("b",), "max_tokens": (6,)}))
    with pytest.raises(UsageError, match="same settings"):
        exact_asks(RequestSet(mixed, "w"), "text-generation")
    with pytest.raises(UsageError, match="no rate"):
        peer_cases([Open(rate=5.0)], TEXTS, "text-generation")


def test_exactly_one_thing_is_compared():
    assert chosen({"devices": ["cpu,gpu"]}) == ("devices", ("cpu,gpu",))
    with pytest.raises(UsageError, match="--devices and --peers exclude"):
        chosen({"devices": ["cpu"], "peers": ["torch"]})
    with pytest.raises(UsageError, match="What is to be compared"):
        chosen({})
