"""Service levels: read strictly, judged per request."""

from __future__ import annotations

import pytest

from hfx.errors import UsageError
from hfx.perf.load import Slo


def test_bounds_have_names_and_units() -> None:
    slo = Slo.parse("ttft<200ms, tpot<=50000us,latency<2s")
    assert slo.bounds == {"ttft": 0.2, "tpot": 0.05, "latency": 2.0}
    assert slo.text == "ttft<200ms,tpot<=50000us,latency<2s"


@pytest.mark.parametrize(
    "text",
    ["", "latency", "latency<", "latency<2", "latency>2s", "p99<2s", "ttft<200ms,", "latency<2s,latency<1s",
     "latency<-1s", "latency<0s", "TTFT<1s", "latency<2s;ttft<1s"],
)  # fmt: skip
def test_what_is_no_service_level_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Slo.parse(text)
    assert caught.value.fix


def test_all_bounds_must_hold() -> None:
    slo = Slo.parse("ttft<200ms,tpot<50ms,latency<2s")
    assert slo.kept(1.9, 0.199, 0.049)
    assert not slo.kept(2.0, 0.1, 0.01)
    assert not slo.kept(1.0, 0.2, 0.01)
    assert not slo.kept(1.0, 0.1, 0.05)


def test_one_token_has_no_time_between_tokens_to_keep_but_no_token_keeps_nothing() -> None:
    slo = Slo.parse("tpot<50ms")
    assert slo.kept(1.0, ttft=0.1)
    assert not slo.kept(1.0)
    assert not Slo.parse("ttft<1s").kept(0.5)


def test_times_of_tokens_are_refused_where_nothing_streams() -> None:
    Slo.parse("ttft<1s").check(stream=True)
    Slo.parse("latency<1s").check(stream=False)
    with pytest.raises(UsageError, match="answers come whole"):
        Slo.parse("latency<1s,tpot<1s").check(stream=False)
