"""API keys: labels, limits, and key files and certificates that are replaced while requests are in progress."""

from __future__ import annotations

import http.client
import math
import os
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.cli.connection import Connection, token_of
from hfx.cli.serve_options import FrontOptions
from hfx.errors import UsageError
from hfx.front.keys import ANYONE, LABEL_HEADER, MINUTE, ApiKeys, Budget, Caller, Rates, read_keys
from hfx.front.refusals import USED_UP, Refusal
from hfx.front.settings import Tls
from hfx.triton.front import Front
from tests.rigs.clients.certificates import make_certificate
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.front_rig import Seen, ask, fronted, post, stderr_file, upstream

FIRST, SECOND = "first-key-of-tests", "second-key-of-tests"
CHAT = "/v1/chat/completions"


@pytest.fixture
def triton() -> Iterator[tuple[int, Seen]]:
    with upstream() as running:
        yield running


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def header(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


def status(front: Front, key: str, path: str = "/v2/models/toy/generate") -> int:
    return ask(front, post(b"{}", path, Authorization=f"Bearer {key}"))[0]


def test_lines_of_a_key_file_have_labels_and_rates(file: Path) -> None:
    bounds = "requests_per_second=2.5 tokens_per_minute=600"
    file.write_text(f"# the first team\nweb:{FIRST} {bounds}\n\n{SECOND}\n batch-2:{'x' * 16} \n")
    keys = ApiKeys(str(file))
    assert keys.check(header(FIRST)).rates == Rates(2.5, 600)
    assert [keys.check(header(key)).label for key in (FIRST, "x" * 16)] == ["web", "batch-2"]
    assert re.fullmatch("key-[0-9a-f]{8}", keys.check(header(SECOND)).label)


def test_a_colon_behind_what_cannot_be_a_label_belongs_to_the_key(file: Path) -> None:
    file.write_text(f"we/b:{FIRST}\n")
    assert ApiKeys(str(file)).check(header(f"we/b:{FIRST}")).label.startswith("key-")


def test_a_key_file_may_be_as_large_as_its_limit(file: Path) -> None:
    file.write_text(f"{FIRST}\n".ljust(1 << 20, "#"))
    assert len(read_keys(str(file))) == 1


def test_a_key_is_taken_as_a_bearer_token_only(file: Path) -> None:
    file.write_text(f"web:{FIRST}\n")
    keys = ApiKeys(str(file))
    assert keys.check({b"authorization": f"bearer  {FIRST} ".encode()}).label == "web"
    for value in (f"Basic {FIRST}", FIRST, f"Bearer {SECOND}", ""):
        with pytest.raises(Refusal) as refused:
            keys.check({b"authorization": value.encode()})
        assert refused.value.status == 401 and refused.value.headers == [(b"www-authenticate", b"Bearer")]


def test_without_a_key_file_everybody_may_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ApiKeys("")
    assert keys.check({}) is keys.check(header(FIRST)) is ANYONE
    assert keys.labelled({LABEL_HEADER: b"web"}) == Caller("web")
    (tmp_path / "file").touch()
    assert [keys.reload() for _ in range(3)] == [""] * 3


def test_a_batch_pauses_while_its_label_has_no_key(file: Path) -> None:
    file.write_text(f"other:{SECOND}\nweb:{FIRST} requests_per_second=1\n")
    keys = ApiKeys(str(file))
    assert keys.labelled({LABEL_HEADER: b"web"}) is keys.check(header(FIRST))
    for headers in ({LABEL_HEADER: b"removed"}, {}):
        with pytest.raises(Refusal, match="no API key") as refused:
            keys.labelled(headers)
        assert refused.value.status == 429 and refused.value.reason == USED_UP
        assert int(dict(refused.value.headers)[b"retry-after"]) > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("web:short", "shorter than 16"),
        ("web:0123456789abcde", "shorter than 16"),
        ("short", "Line 1"),
        ("# nothing", "has no API key"),
        (f"{FIRST} requests_per_second=0", "with N above 0"),
        (f"{FIRST} requests_per_second=-1", "requests_per_second=N"),
        (f"{FIRST} tokens=5", "'tokens=5'"),
        (f"{FIRST} {SECOND}", "behind its key"),
        (f"a:{FIRST}\na:{SECOND} tokens_per_minute=5", "another way"),
        ("\0" * 40, "not an API key"),
        ("a" * (1 << 20 | 1), "larger than"),
    ],
)
def test_an_invalid_key_file_is_refused(text: str, words: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_keys(str(file))


def test_a_budget_refills_at_its_rate() -> None:
    budget, now = Budget(2.0, 4.0), 100.0
    for _ in range(4):
        assert not budget.wait(now, 1)
        budget.take(1)
    assert budget.wait(now, 1) == pytest.approx(0.5)
    assert not budget.wait(now + 0.5, 1)
    assert budget.wait(now + 1e6, 5) == pytest.approx(0.5)  # more than 4 are not saved up


@pytest.mark.parametrize(("rate", "at_once"), [(0.25, 1), (1.0, 1), (2.0, 2)])
def test_requests_beyond_the_rate_are_refused_until_enough_time_has_passed(rate: float, at_once: int) -> None:
    caller = Caller("web", Rates(requests_per_second=rate))
    for _ in range(at_once):
        caller.admit(0.0, has_counts=False)
    with pytest.raises(Refusal, match="requests a second") as refused:
        caller.admit(0.0, has_counts=False)
    assert refused.value.status == 429 and refused.value.reason == USED_UP
    assert dict(refused.value.headers)[b"retry-after"] == b"%d" % math.ceil(1 / rate)
    with pytest.raises(Refusal):
        caller.admit(0.9 / rate, has_counts=False)
    caller.admit(1 / rate, has_counts=False)


def test_tokens_of_earlier_answers_count_against_the_limit() -> None:
    caller = Caller("web", Rates(tokens_per_minute=60))
    caller.admit(0.0, has_counts=True)
    caller.spend(90)  # an answer may be longer than the remaining budget
    with pytest.raises(Refusal, match="60 tokens a minute") as refused:
        caller.admit(1.0, has_counts=True)
    assert refused.value.status == 429 and dict(refused.value.headers)[b"retry-after"] == b"30"
    caller.admit(MINUTE / 60 * 31.0, has_counts=True)
    with pytest.raises(Refusal, match="does not count them") as refused:
        caller.admit(MINUTE * 9, has_counts=False)
    assert refused.value.status == 403
    Caller("all").admit(0.0, has_counts=False)
    Caller("all").spend(90)


def test_the_tokens_a_request_may_need_are_reserved_while_it_runs() -> None:
    """50 concurrent requests together stay within the limit, and one that may need more than all of it is answered."""
    caller = Caller("web", Rates(tokens_per_minute=100))
    for _ in range(4):
        caller.hold(0.0, 25)
    with pytest.raises(Refusal, match="100 tokens a minute"):
        caller.hold(0.0, 25)
    for _ in range(4):
        caller.spend(-25)
        caller.spend(5)
    caller.hold(0.0, 40)
    with pytest.raises(Refusal):
        caller.hold(0.0, 5000)  # less than half is left
    caller.spend(-10)
    caller.hold(0.0, 5000)
    with pytest.raises(Refusal):
        caller.hold(0.0, 1)
    Caller("all").hold(0.0, 10**9)


def test_requests_beyond_the_rate_are_refused_in_the_callers_dialect(triton: tuple[int, Seen], file: Path) -> None:
    file.write_text(f"web:{FIRST} requests_per_second=3\nweb:{SECOND} requests_per_second=3\nother:{'o' * 16}\n")
    with fronted(triton[0], key_file=str(file)) as front:
        answers = [ask(front, post(b"{}", CHAT, Authorization=f"Bearer {key}")) for key in (FIRST, SECOND) * 5]
        refused = [(headers["retry-after"], body) for code, headers, body in answers if code == 429]
        assert 3 <= len(refused) < 8  # the two keys of a label share its budget
        assert all(again == "1" and b"3 requests a second" in body for again, body in refused)
        assert b'"rate_limit' in refused[0][1]
        assert status(front, "o" * 16) == 200
        assert len([1 for code, *_ in answers if code == 400]) == 10 - len(refused)


def test_tritons_own_paths_are_closed_to_keys_with_bounded_tokens(triton: tuple[int, Seen], file: Path) -> None:
    file.write_text(f"web:{FIRST} tokens_per_minute=100\n")
    with fronted(triton[0], key_file=str(file)) as front:
        assert status(front, FIRST) == 403
        assert status(front, FIRST, CHAT) == 400
        assert triton[1].requests == []


def test_a_replaced_file_counts_without_a_lost_request(triton: tuple[int, Seen], file: Path, tmp_path: Path) -> None:
    file.write_text(f"a:{FIRST}\nkept:{'k' * 16}\n")
    with fronted(triton[0], key_file=str(file)) as front:
        stop, codes = threading.Event(), []

        def keep_asking() -> None:
            while not stop.is_set():
                codes.append(status(front, "k" * 16))

        thread = threading.Thread(target=keep_asking)
        thread.start()
        try:
            for old, new in ((FIRST, SECOND), (SECOND, FIRST)):
                assert (status(front, old), status(front, new)) == (200, 401)
                (tmp_path / "next").write_text(f"a:{new}\nkept:{'k' * 16}\n")
                (tmp_path / "next").replace(file)
                wait_until(lambda: status(front, new) == 200)  # noqa: B023
                assert status(front, old) == 401
        finally:
            stop.set()
            thread.join()
    assert len(codes) > 10 and set(codes) == {200}


@pytest.mark.parametrize("content", ["", "# none\n", f"a:{SECOND}\nb:sho", "\xff\0"])
def test_a_file_that_cannot_be_used_changes_nothing(content: str, file: Path) -> None:
    file.write_text(f"a:{FIRST}\n")
    keys = ApiKeys(str(file))
    file.write_text(content, "latin-1")
    assert [bool(keys.reload()) for _ in range(3)] == [False, True, False]
    assert keys.check(header(FIRST)).label == "a"
    with pytest.raises(Refusal):
        keys.check(header(SECOND))


def test_a_front_says_that_a_file_cannot_be_used_and_goes_on(
    triton: tuple[int, Seen], file: Path, tmp_path: Path
) -> None:
    file.write_text(f"a:{FIRST}\n")
    with stderr_file(tmp_path / "log") as log, fronted(triton[0], key_file=str(file)) as front:
        file.write_text(f"a:{SECOND}\nb:sho")
        wait_until(lambda: "The API keys stay as they were" in log.read_text())
        assert (status(front, FIRST), status(front, SECOND)) == (200, 401)
        file.unlink()
        file.write_text(f"a:{SECOND}\n")
        wait_until(lambda: status(front, SECOND) == 200)


def test_a_file_is_read_once_it_no_longer_changes(file: Path) -> None:
    file.write_text(f"a:{FIRST}\n")
    keys = ApiKeys(str(file))
    file.write_text(f"a:{FIRST}\nb:sec")
    assert not keys.reload()  # it may be half written
    file.write_text(f"a:{FIRST}\nb:{SECOND}\n")
    assert not keys.reload()
    assert "2 API keys" in keys.reload()
    assert not keys.reload() and keys.check(header(SECOND)).label == "b"


def test_labels_with_the_same_bounds_keep_what_is_left(file: Path) -> None:
    file.write_text(f"a:{FIRST} tokens_per_minute=60\n")
    keys = ApiKeys(str(file))
    keys.check(header(FIRST)).spend(10**6)
    file.write_text(f"a:{SECOND} tokens_per_minute=60\n")
    assert [bool(keys.reload()) for _ in range(2)] == [False, True]
    with pytest.raises(Refusal, match="tokens a minute"):
        keys.check(header(SECOND)).admit(0.0, has_counts=True)
    assert math.isinf(keys.check(header(SECOND)).rates.requests_per_second)


def test_a_label_with_other_bounds_begins_with_all_of_them(file: Path) -> None:
    file.write_text(f"a:{FIRST} tokens_per_minute=60\n")
    keys = ApiKeys(str(file))
    keys.check(header(FIRST)).spend(10**6)
    file.write_text(f"a:{FIRST} tokens_per_minute=90\n")
    assert [bool(keys.reload()) for _ in range(2)] == [False, True]
    keys.check(header(FIRST)).hold(0.0, 90)


def test_a_new_certificate_is_shown_to_new_connections(triton: tuple[int, Seen], tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    other = make_certificate(tmp_path, "other")
    contexts = [ssl.create_default_context(cafile=each) for each in (certificate, other[0])]

    def answers(front: Front, context: ssl.SSLContext) -> bool:
        connection = http.client.HTTPSConnection(front.url.removeprefix("https://"), context=context, timeout=60)
        try:
            connection.request("GET", "/v2")
            return connection.getresponse().status == 200
        except ssl.SSLError:
            return False
        finally:
            connection.close()

    Path(tmp_path / "own.pem").write_text(Path(certificate).read_text())
    Path(tmp_path / "own.key").write_text(Path(key).read_text())
    with fronted(triton[0], tls=Tls(str(tmp_path / "own.pem"), str(tmp_path / "own.key"))) as front:
        kept = http.client.HTTPSConnection(front.url.removeprefix("https://"), context=contexts[0], timeout=60)
        kept.request("GET", "/v2")
        assert kept.getresponse().read() is not None
        Path(tmp_path / "own.pem").write_text(Path(other[0]).read_text())  # without its key: it can't be used
        threading.Event().wait(2.5)
        assert answers(front, contexts[0])
        Path(tmp_path / "own.key").write_text(Path(other[1]).read_text())
        wait_until(lambda: answers(front, contexts[1]))
        assert not answers(front, contexts[0])
        kept.request("GET", "/v2")  # a connection that there was stays
        assert kept.getresponse().status == 200
        kept.close()


def test_a_file_that_is_not_there_is_named_with_the_line_that_makes_it(tmp_path: Path) -> None:
    missing = tmp_path / "my keys"
    with pytest.raises(UsageError) as refused:
        read_keys(str(missing))
    assert str(missing) in refused.value.message
    subprocess.run(refused.value.fix.split(": ")[1], shell=True, check=True)
    assert [caller.label for caller in read_keys(str(missing)).values()] == ["web"]
    missing.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8") as refused:
        read_keys(str(missing))
    assert " > " not in refused.value.fix  # it would overwrite the file
    with pytest.raises(UsageError, match="Is a directory"):
        read_keys(str(tmp_path))


def test_a_pipe_in_place_of_a_key_or_certificate_file_does_not_block(
    file: Path, triton: tuple[int, Seen], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is not a regular file"):
        read_keys(str(pipe))
    with pytest.raises(UsageError, match="is not a regular file"):
        _ = FrontOptions(tls_cert=pipe, tls_key=pipe).tls
    with pytest.raises(UsageError, match="is not a regular file"):
        token_of(Connection(token_file=pipe))
    file.write_text(f"{FIRST}\n")
    with fronted(triton[0], key_file=str(file)) as front:
        pipe.replace(file)
        threading.Event().wait(2.5)  # it is looked at each second
        assert status(front, FIRST) == 200
