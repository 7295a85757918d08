"""Jobs on servers: a refusal by the server concerns its row; a failure of the server is never blamed on a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hfx import names
from hfx.answering import Answer, Request
from hfx.batch.models import Servers, open_model
from hfx.batch.scoring import reason, score
from hfx.batch.servers import Persistence
from hfx.errors import HfxError, ModelChanged, ServerBusy, ServerError, ServerUnreachable
from tests.rigs.clients.client_servers import Script, grpc_server
from tests.rigs.files.batch_jobs import CLASSIFIER, CommandLine, texts

IMPATIENT = Persistence(patience=1.0, retries=2)
Outcomes = list[tuple[str, Answer | HfxError]]
Scored = Callable[[Sequence[str]], Outcomes]


@contextmanager
def scoring(*urls: str, persistence: Persistence = IMPATIENT) -> Iterator[Scored]:
    """Yield a function that scores texts by a model on servers."""

    def request_of(text: str) -> Request:
        return {names.TEXT_INPUT: [text]}

    with open_model("writer", Servers(urls, at_once=4), persistence) as model:
        yield lambda texts: list(score(model, texts, request_of))


def errors(outcomes: Outcomes) -> dict[str, str]:
    """Return the reasons of the rows that are errors."""
    return {text: reason(outcome) for text, outcome in outcomes if isinstance(outcome, HfxError)}


def test_a_row_is_an_error_only_if_the_server_answers_other_rows(url: str) -> None:
    refused, failing = "fail INVALID_ARGUMENT No such word.", "fail INTERNAL It broke."
    ending = "sleep 0.1 fail UNAVAILABLE It is gone."
    texts = [*("write 1",) * 5, refused, failing, *("write 2",) * 5]
    texts += [] if url.startswith("http") else [ending]  # HTTP's 503 says that it is busy
    with scoring(url) as scored:
        outcomes = scored(texts)
    assert [text for text, _ in outcomes] == texts
    reasons = {refused: "No such word.", failing: "The server fails at it: It broke."}
    if ending in texts:
        reasons[ending] = "The server ends at it every time."
    assert errors(outcomes) == reasons


@pytest.mark.parametrize(
    ("text", "once"),
    [
        ("fail UNAUTHENTICATED No token.", True),
        ("fail NOT_FOUND unknown model", False),
        ("fail INTERNAL It broke.", False),
    ],
)
def test_an_error_that_concerns_every_row_ends_the_run(text: str, once: bool, url: str, script: Script) -> None:
    with scoring(url) as scored, pytest.raises(ServerError) as caught:
        scored([text] * 6)
    assert type(caught.value) is ServerError
    assert (len(script.values) <= 6) is once  # otherwise each row is sent again until the patience ends


def test_a_busy_server_gets_fewer_requests_and_all_rows(script: Script, url: str) -> None:
    script.busy = 12
    with scoring(url, persistence=Persistence(patience=20.0, retries=0)) as scored:
        assert not errors(scored(["write 1"] * 40))
    assert len(script.texts) >= 40 + 12


def test_a_row_for_which_a_server_is_busy_for_ever_ends_the_run(url: str) -> None:
    with scoring(url) as scored, pytest.raises(ServerBusy, match="No server has answered for"):
        scored(["write 1", "fail UNAVAILABLE Exceeds maximum queue size"])


def test_a_row_that_takes_too_long_is_an_error(url: str) -> None:
    with scoring(url, persistence=Persistence(patience=20.0, retries=1, row_timeout=0.4)) as scored:
        outcomes = scored(["write 1", "sleep 2", "write 1"])
    assert errors(outcomes).keys() == {"sleep 2"}


def test_a_job_on_two_servers_survives_the_end_of_one(script: Script) -> None:
    other = Script()
    with grpc_server(script) as stays, ExitStack() as stack:
        ends = stack.enter_context(grpc_server(other))
        with scoring(stays, ends, persistence=Persistence(patience=20.0, retries=0)) as scored:
            ending = other.when_asked(4, stack.close)
            outcomes = scored(["sleep 0.1 write 1"] * 40)
            ending.join()
    assert not errors(outcomes)
    assert len(other.texts) >= 4 and len(script.texts) > 20


def test_a_server_that_restarts_during_a_job_loses_no_row(script: Script) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(grpc_server(script))
        with scoring(url, persistence=Persistence(patience=20.0, retries=0)) as scored:

            def restart() -> None:
                stack.close()
                time.sleep(1)
                stack.enter_context(grpc_server(script, port=int(url.rpartition(":")[2])))

            restarting = script.when_asked(8, restart)
            assert not errors(scored(["sleep 0.1 write 1"] * 20))
            restarting.join()


def test_a_server_that_stays_away_ends_the_run(script: Script) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(grpc_server(script))
        with scoring(url) as scored:
            ending = script.when_asked(2, stack.close)
            with pytest.raises(ServerUnreachable, match="No server has answered for") as caught:
                scored(["sleep 0.1 write 1"] * 20)
            ending.join()
    assert "--patience" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "script_url", "expected", "reason"),
    [
        ("unknown", True, 3, "has no model 'unknown'"),
        ("writer", False, 5, "can't be reached"),
        (CLASSIFIER, True, 3, "has no model"),
    ],
)
def test_an_unserved_model_or_unreachable_server_is_refused_at_once(
    name: str, script_url: bool, expected: int, reason: str, url: str, batch: CommandLine, tmp_path: Path
) -> None:
    address = url if script_url else "127.0.0.1:9"
    began = time.monotonic()
    code, text = batch(*batch.new(name, tmp_path / "job", texts(tmp_path / "a.csv", 1), "--url", address))
    assert (code, reason in text) == (expected, True), text
    assert time.monotonic() - began < 10
    assert not (tmp_path / "job").exists()


def orders(path: Path, *texts: str) -> Path:
    """Write a CSV file with the texts."""
    path.write_text("text\n" + "".join(f"{text}\n" for text in texts))
    return path


def parts(job: Path) -> int:
    return len([*job.glob("parts/0*")])


def test_servers_of_different_models_are_refused(script: Script, url: str, batch: CommandLine, tmp_path: Path) -> None:
    script.model_sha256 = "a"
    with grpc_server(Script(model_sha256="b")) as other:
        both = ("--url", url, "--url", other)
        code, text = batch(*batch.new("writer", tmp_path / "job", orders(tmp_path / "a.csv", "write 1"), *both))
    assert code == 2 and "'writer'" in text


def test_answers_that_another_model_may_have_given_are_discarded(
    script: Script, url: str, batch: CommandLine, tmp_path: Path
) -> None:
    script.model_sha256 = "a"
    options = ("--url", url, "--mini-batch-size", "3", "--max-concurrency", "1")
    words = batch.new("writer", tmp_path / "job", orders(tmp_path / "a.csv", *["sleep 0.1 write 1"] * 9), *options)

    def publish_another() -> None:
        script.model_sha256 = "b"

    changing = script.when_asked(6, publish_another)  # the probe's, three rows, and two of the next three
    code, text = batch(*words)
    changing.join()
    assert code == 2 and "another model 'writer'" in text
    assert parts(tmp_path / "job") == 1
    code, text = batch("resume", tmp_path / "job")
    assert code == 2 and "exported again" in text
    script.model_sha256 = "a"
    batch.done("resume", tmp_path / "job")
    assert parts(tmp_path / "job") == 3


def test_a_server_that_comes_back_with_another_model_gets_no_row(script: Script) -> None:
    script.model_sha256, other = "a", Script(model_sha256="b")
    with ExitStack() as stack:
        url = stack.enter_context(grpc_server(script))
        with scoring(url, persistence=Persistence(patience=20.0, retries=0)) as scored:

            def restart() -> None:
                stack.close()
                stack.enter_context(grpc_server(other, port=int(url.rpartition(":")[2])))

            restarting = script.when_asked(8, restart)
            with pytest.raises(ModelChanged):
                scored(["sleep 0.1 write 1"] * 20)
            restarting.join()
    assert not other.texts


def test_rows_of_a_server_that_ends_unverified_are_sent_to_another(
    script: Script, batch: CommandLine, tmp_path: Path
) -> None:
    other = Script(model_sha256="a")
    script.model_sha256 = "a"
    with grpc_server(script) as stays, ExitStack() as stack:
        leaves = stack.enter_context(grpc_server(other))
        options = ("--url", stays, "--url", leaves, "--mini-batch-size", "20", "--max-concurrency", "4")
        leaving = other.when_asked(4, stack.close)
        rows = orders(tmp_path / "a.csv", *["sleep 0.05 write 1"] * 20)
        batch.done(*batch.new("writer", tmp_path / "job", rows, *options))
        leaving.join()
    assert len(script.texts) >= 20  # all of the chunk


def test_a_server_that_stops_stating_its_model_hash_ends_the_run(script: Script) -> None:
    script.model_sha256 = "a"
    with grpc_server(script) as url, open_model("writer", Servers((url,), at_once=4), IMPATIENT) as model:
        model.answer({names.TEXT_INPUT: ["write 1"]})
        assert model.is_unchanged()
        script.hides = True
        for _ in range(IMPATIENT.retries):
            model.answer({names.TEXT_INPUT: ["write 1"]})
            assert not model.is_unchanged()
            script.hides = False  # otherwise the next request waits for it
            model.answer({names.TEXT_INPUT: ["write 1"]})
            script.hides = True
        with pytest.raises(ServerUnreachable, match="which model"):
            model.is_unchanged()


def test_a_server_that_does_not_say_which_model_it_has_is_warned_of(
    url: str, batch: CommandLine, tmp_path: Path
) -> None:
    words = batch.new("writer", tmp_path / "job", orders(tmp_path / "a.csv", "write 1"), "--url", url)
    code, text = batch(*words)
    assert code == 0 and "the files of writer" in text
