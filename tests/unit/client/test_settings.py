"""Settings, addresses and retry policies: which values are accepted, and how the others are refused."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hfx.client import Client, GenerationSettings, RetryPolicy, Tls
from hfx.client.address import checked_headers, parse_address
from hfx.client.retries import Deadline, Retries
from hfx.client.settings import merged, setting_values
from hfx.client.transport import run
from hfx.errors import RequestRefused, ServerBusy, ServerUnreachable, UsageError


def test_keywords_override_the_settings_object_without_changing_it() -> None:
    settings = GenerationSettings(max_tokens=5, temperature=0.5)
    assert merged(settings, {"max_tokens": 9, "seed": 1}) == GenerationSettings(max_tokens=9, temperature=0.5, seed=1)
    assert merged(settings, {"max_tokens": None}) == settings
    assert merged(None, {}) == GenerationSettings()


def test_names_of_other_servers_are_taken_as_keywords() -> None:
    settings = merged(None, {"max_new_tokens": 5, "stop": "end", "beam_width": 2})
    assert settings == GenerationSettings(max_tokens=5, stop_words=["end"], num_beams=2)
    assert merged(None, {"stop": ["a", "b"]}).stop_words == ("a", "b")
    with pytest.raises(UsageError, match="max_new_tokens is 5, but max_tokens, which is the same, 6"):
        merged(None, {"max_tokens": 6, "max_new_tokens": 5})


def test_what_is_set_is_sent_under_the_names_of_tensors() -> None:
    settings = GenerationSettings(do_sample=False, stop_words=["a", "b"], early_stopping="never", temperature=0)
    values = {"do_sample": [False], "stop_words": ["a", "b"], "early_stopping": ["never"], "temperature": [0]}
    assert setting_values(settings) == values
    assert setting_values(GenerationSettings(early_stopping=False)) == {"early_stopping": ["false"]}
    assert setting_values(GenerationSettings()) == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 1.5}, {"max_tokens": True}, {"max_tokens": "3"}, {"temperature": "hot"}, {"temperature": True},
        {"do_sample": 1}, {"early_stopping": "maybe"}, {"early_stopping": 1}, {"long": "cut"}, {"merge": "sum"},
        {"stop_words": "stop"}, {"stop_words": [3]}, {"stop_words": [""]}, {"return_log_probs": "yes"}, {"long": []},
        {"logprobs": True}, {"logprobs": 2.0},
        {"seed": 1.0}, {"overlap": "1"}, {"source_lang": 3}, {"target_lang": ["fr"]},
    ],
)  # fmt: skip
def test_a_setting_of_the_wrong_kind_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(settings))} is ") as caught:
        GenerationSettings(**settings)
    assert caught.value.fix.startswith("Give ")


def test_a_setting_that_does_not_exist_is_refused_with_the_one_that_may_be_meant() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(UsageError, match="no setting 'max_token'") as caught:
        client.generate("m", "text", max_token=3)  # type: ignore[call-overload]
    assert caught.value.fix == "Did you mean max_tokens?"
    with pytest.raises(UsageError, match="of type dict"):
        merged({"max_tokens": 3}, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("localhost:8001", ("grpc", False, "localhost:8001")),
        ("127.0.0.1:1", ("grpc", False, "127.0.0.1:1")),
        ("[::1]:8001", ("grpc", False, "[::1]:8001")),
        ("grpc://a.b:8001", ("grpc", False, "a.b:8001")),
        ("grpcs://a.b", ("grpc", True, "a.b:443")),
        ("http://a.b:8000/", ("http", False, "a.b:8000")),
        ("https://a.b", ("http", True, "a.b:443")),
    ],
)
def test_an_address_is_read(url: str, parts: tuple[str, bool, str]) -> None:
    address = parse_address(url)
    assert (address.protocol, address.secure, address.target) == parts
    assert address.url == url


@pytest.mark.parametrize(
    "url",
    ["localhost", ":8001", "localhost:0", "localhost:port", "", "localhost:65536", "ftp://a:1", "http://", "a b:1:2",
     "http://user:word@a:1", "http://a:1/path", "http://a:1?x=1", "[::1:8001"],
)  # fmt: skip
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not an address") as caught:
        Client(url)
    assert "HOST:PORT" in caught.value.fix


@pytest.mark.parametrize("url", ["127.0.0.1:1", "localhost:1", "http://[::1]:1", "grpcs://far.example", "https://far"])
def test_a_token_goes_to_this_machine_or_encrypted(url: str) -> None:
    assert checked_headers(parse_address(url), None, "abc", None) == {"authorization": "Bearer abc"}


@pytest.mark.parametrize("url", ["far.example:8001", "http://10.0.0.1:8000", "http://localhost.example:80"])
def test_a_token_does_not_go_elsewhere_in_plain_text_unless_it_is_given_as_a_header(url: str) -> None:
    with pytest.raises(UsageError, match="in plain text") as caught:
        Client(url, token="abc")
    assert "headers=" in caught.value.fix
    Client(url, headers={"Authorization": "Bearer abc"}).close()


@pytest.mark.parametrize("token", ["", "two words", "new\nline", "naïve"])
def test_an_invalid_token_is_refused(token: str) -> None:
    with pytest.raises(UsageError, match="token"):
        Client("127.0.0.1:1", token=token)


def test_a_header_can_not_smuggle_another() -> None:
    with pytest.raises(UsageError, match="x-a"):
        Client("127.0.0.1:1", headers={"X-A": "b\r\nauthorization: c"})


def test_tls_needs_its_files_and_an_encrypted_address(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        Tls(ca=tmp_path / "none.pem")
    with pytest.raises(UsageError, match="needs its key"):
        Tls(certificate=__file__)
    with pytest.raises(UsageError, match="not encrypted"):
        Client("127.0.0.1:1", tls=Tls(ca=__file__))
    for url in ("grpcs://127.0.0.1:1", "https://127.0.0.1:1"):
        for files in (Tls(ca=__file__), Tls(certificate=__file__, key=__file__)):
            with pytest.raises(UsageError, match="can't be used"):
                Client(url, tls=files)


class Failing:
    """An attempt that fails the given number of times."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times, self.error, self.made = times, error, 0

    async def __call__(self) -> int:
        self.made += 1
        if self.made <= self.times:
            raise self.error
        return self.made


async def no_sleep(seconds: float) -> None:
    pass


async def sleep(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize(
    ("error", "attempts", "made"),
    [(ServerBusy("busy"), 3, 3), (ServerUnreachable("gone"), 2, 2), (RequestRefused("no"), 9, 1)],
)
def test_attempts_include_the_first_and_only_safe_errors_are_retried(
    error: Exception, attempts: int, made: int
) -> None:
    policy, failing = RetryPolicy(attempts=attempts), Failing(9, error)
    with pytest.raises(type(error)):
        run(Retries(policy, no_sleep).call(failing, Deadline(60)))
    assert failing.made == made
    if made > 1:
        assert run(Retries(policy, no_sleep).call(Failing(made - 1, error), Deadline(60))) == made


def test_retries_end_before_the_deadline() -> None:
    failing = Failing(10**6, ServerBusy("busy"))
    with pytest.raises(ServerBusy):
        run(Retries(RetryPolicy(attempts=10**6), sleep).call(failing, Deadline(0.3)))
    assert failing.made < 100


def test_the_budget_is_one_for_all_threads() -> None:
    shared = Retries(RetryPolicy(attempts=5, budget=0.1), no_sleep)

    def attempts(_: int) -> int:
        failing = Failing(10**6, ServerBusy("busy"))
        with pytest.raises(ServerBusy):
            run(shared.call(failing, Deadline(60)))
        return failing.made

    with ThreadPoolExecutor(8) as pool:
        made = sum(pool.map(attempts, range(800)))
    assert 800 + 80 <= made <= 800 + 80 + 11


@pytest.mark.parametrize(
    "policy", [{"attempts": 0}, {"attempts": 1.5}, {"budget": -1}, {"shortest": 3, "longest": 1}, {"shortest": -1}]
)
def test_an_invalid_retry_policy_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RetryPolicy(**policy)
