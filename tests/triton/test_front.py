"""The public HTTP port of `hfx serve` before a real Triton: requests that would end Triton do not reach it."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as triton_http

from hfx.cli import main
from hfx.client import Client, Tls
from hfx.errors import FetchFailed, ServerError
from hfx.perf.tools.perf_analyzer import fetch
from hfx.triton import process
from tests.rigs.clients.certificates import make_certificate
from tests.rigs.machine.tiers import full
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import ServeProcess, infer, left_behind, serving
from tests.rigs.servers.toy_models import write_ticks, write_toy

pytestmark = pytest.mark.triton
INFER = "/v2/models/toy/infer"
JSON = json.dumps({"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["four"]}]}).encode()
JAVA_CLIENT = Path(__file__).parent.parent / "rigs" / "clients" / "Post.java"
JSON_TYPE = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ticks(write_toy(tmp_path_factory.mktemp("repository")))


def address(served: ServeProcess) -> str:
    return served.http_url.rpartition("/")[2]


def post(
    served: ServeProcess, body: bytes, path: str = INFER, headers: dict[str, str] = JSON_TYPE
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address(served), timeout=60)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.parametrize("path", [INFER, "/v2/models/ticks/generate", "/v2/repository/index"])
def test_deeply_nested_json_is_refused_before_it_reaches_triton(served: ServeProcess, path: str) -> None:
    server, stubs = served.server, process.stubs(served.server)
    for body in (b"[" * 3_000_000, b"[" * 3_000_000 + b"]" * 3_000_000, b'{"a":' * 1_000_000):
        for _ in range(10 if path == INFER else 1):
            status, answer = post(served, body, path)
            assert status == 400
            assert "nested deeper than 64" in json.loads(answer)["error"]
    assert (served.server, process.stubs(server)) == (server, stubs)
    assert infer(served.http_url, "toy", "four") == "4 characters"


@pytest.mark.parametrize(
    "body", [b"3", b"[", b"{", b"\0", b'{"inputs": [}', b'{"inputs": "', b"\xff\xfe", b"[]", b"[]" * 1000, b'{"a": 1}}']
)
@pytest.mark.parametrize("path", [INFER, "/v2/models/ticks/generate", "/v2/models/ticks/generate_stream"])
def test_malformed_json_is_a_400(served: ServeProcess, path: str, body: bytes) -> None:
    server = served.server
    assert post(served, body, path)[0] == 400
    assert served.server == server


def test_gzip_bombs_and_large_form_bodies_are_refused_in_little_memory(served: ServeProcess) -> None:
    server = served.server
    compressor = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = compressor.compress(bytes(1 << 24)) + compressor.flush(zlib.Z_FULL_FLUSH)
    bomb = gzip.compress(b"")[:10] + 64 * block  # 1 GiB; the refusal comes before its end is missed
    for _ in range(3):
        assert post(served, bomb, headers={"Content-Encoding": "gzip"})[0] == 413
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert post(served, b"a=" * (8 << 20), headers=form)[0] == 400
    assert post(served, JSON, headers=form)[0] == 200
    [front] = served.fronts
    [peak] = [line for line in Path(f"/proc/{front}/status").read_text().splitlines() if line.startswith("VmHWM")]
    assert int(peak.split()[1]) < 400_000
    assert served.server == server


# Clients


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritons_own_client_works(served: ServeProcess, binary: bool, compression: str | None) -> None:
    text = triton_http.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([["four" * 50]], np.object_), binary_data=binary)
    with triton_http.InferenceServerClient(address(served)) as client:
        outputs = [triton_http.InferRequestedOutput("label", binary_data=binary)]
        answer = client.infer(
            "toy",
            [text],
            outputs=outputs,
            request_compression_algorithm=compression,
            response_compression_algorithm=compression,
        )
        assert answer.as_numpy("label").tolist() in ([["200 characters"]], [[b"200 characters"]])
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("toy")
        assert client.get_model_config("toy")["name"] == "toy"
        assert {model["name"] for model in client.get_model_repository_index()} == {"toy", "toy_tokenize", "ticks"}
        assert client.get_inference_statistics("toy")["model_stats"]
        with pytest.raises(triton_http.InferenceServerException, match="closed"):
            client.update_log_settings({"log_verbose_level": 1})


def test_hfxs_client_works_over_http(served: ServeProcess) -> None:
    with Client(served.http_url) as client:
        assert client.classify("toy", ["one", "three"], top_k=1)[1].label == "5 characters"
        with pytest.raises(ServerError, match="no model"):
            client.classify("nothing", "one")


def test_curl_and_load_balancers_work(served: ServeProcess) -> None:
    expecting = ["curl", "-sS", "-H", "Expect: 100-continue", "--data-binary", "@-", served.http_url + INFER]
    assert b"4 characters" in subprocess.run(expecting, input=JSON, capture_output=True, check=True).stdout
    for path in ("/health", "/v2/health/ready", "/metrics"):
        with urllib.request.urlopen(served.http_url + path, timeout=60) as answer:
            assert answer.status == 200


OFFERING = ["curl", "-sSv", "--http2", "-H", "Content-Type: application/json"]


@pytest.mark.parametrize("framing", [[], ["-H", "Transfer-Encoding: chunked"]])
def test_curl_offering_http_2_is_answered_over_http_1(served: ServeProcess, framing: list[str]) -> None:
    command = [*OFFERING, *framing, "--data-binary", "@-", *[served.http_url + INFER] * 3]
    done = subprocess.run(command, input=JSON, capture_output=True, check=True)
    assert done.stdout.count(b"4 characters") == 3
    assert b"Upgrade: h2c" in done.stderr


def test_a_jdks_own_client_is_answered_with_a_length_and_in_chunks(served: ServeProcess) -> None:
    if shutil.which("java") is None:
        pytest.skip("Java is not installed; install a JDK of 11 or later")
    java = ["java", "-XX:TieredStopAtLevel=1", JAVA_CLIENT, served.http_url, INFER, JSON]
    done = subprocess.run(java, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    answers = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert [status for status, _, _ in answers] == ["200"] * 5
    assert all("4 characters" in body for _, kind, body in answers if kind == "POST")


def test_pieces_of_a_stream_come_as_they_are_made(served: ServeProcess) -> None:
    request = urllib.request.Request(f"{served.http_url}/v2/models/ticks/generate_stream", b'{"text_input": "100000"}')
    with urllib.request.urlopen(request, timeout=60) as stream:  # of a stream of hours
        events = [json.loads(line[5:]) for line in (stream.readline() for _ in range(6)) if line.startswith(b"data:")]
    assert [event["text_output"] for event in events] == ["0", "1", "2"]


def test_perf_analyzer_works(served: ServeProcess, tmp_path: Path) -> None:
    try:
        program = fetch()
    except FetchFailed as failure:
        pytest.skip(f"perf_analyzer can't be fetched: {failure}")
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"text_input": ["a text"]}]}))
    command = [program.path, "-m", "toy", "-u", address(served), "-i", "http", "--input-data", data, "-b", "1"]
    counted = ["--request-count", "20", "--shape", "text_input:1"]
    done = subprocess.run([*command, *counted], env=program.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Throughput" in done.stdout


def test_only_this_user_loads_and_unloads(served: ServeProcess) -> None:
    status, refusal = post(served, b"{}", "/v2/repository/models/toy/unload")
    assert status == 403, refusal
    with grpc.InferenceServerClient(served.ready["grpc_url"]) as client:
        for change in (client.load_model, client.unload_model):
            with pytest.raises(grpc.InferenceServerException, match="restricted"):
                change("toy")
    assert infer(served.http_url, "toy", "four") == "4 characters"
    assert b"--http-address=unix:" in Path(f"/proc/{served.server}/cmdline").read_bytes()


# The process


@pytest.mark.usefixtures("temporary")
def test_a_killed_front_is_replaced_while_triton_runs_on(repository: Path) -> None:
    with serving(repository, "--access-log", "text") as served:
        server = served.server
        for _ in range(2):
            [front] = served.fronts
            os.kill(front, signal.SIGKILL)
            assert infer(served.http_url, "toy", "four") == "4 characters"
        served.wait_for_words("the HTTP front died (killed by signal 9); starting another one.")
        served.wait_for_words(f"POST {INFER} 200")
        assert served.server == server
        [front] = served.fronts
        served.running.kill()
        served.end()
        wait_until(lambda: not Path(f"/proc/{front}").exists())
    left = left_behind()
    assert all("hfx-triton-" in name or "hfx_triton_" in name for name in left)


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize(("descriptors", "count"), [(256, 400), full(1024, 900)])
def test_idle_connections_give_way_when_file_descriptors_run_out(
    repository: Path, temporary: Path, descriptors: int, count: int
) -> None:
    few = ("bash", "-c", f'ulimit -n {descriptors}; exec "$@"', "bash")  # the soft limit and the hard one
    with serving(repository, through=few) as served:
        host, port = address(served).split(":")
        idle = [socket.create_connection((host, int(port)), timeout=60) for _ in range(count)]

        def is_answered() -> bool:
            try:
                return post(served, JSON)[0] == 200
            except (ConnectionError, http.client.HTTPException):
                return False  # the idle ones are too new to give way

        wait_until(is_answered)
        assert all(is_answered() for _ in range(20))
        for connection in idle:
            connection.setblocking(False)
            with connection, suppress(BlockingIOError):  # a connection that is still open
                assert connection.recv(64)[:12] in (b"HTTP/1.1 503", b"HTTP/1.1 408", b"")
        [log] = temporary.glob("hfx-triton-*/triton.log")
        assert log.stat().st_size < 1 << 20
        served.running.terminate()
        assert served.end() == 0, served.words


def test_https_with_keys_and_client_certificates_also_for_grpc(repository: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    client = make_certificate(tmp_path, "client")
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-the-tests\n")
    files = ("--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", client[0], "--api-key-file", str(keys))
    with serving(repository, *files) as served:
        assert served.http_url.startswith("https://") and served.ready["grpc_url"].startswith("grpcs://")
        known, unknown = Tls(certificate, *client), Tls(certificate)
        for url in (served.http_url, served.ready["grpc_url"]):
            with Client(url, tls=known, token="a-key-of-the-tests") as reached:
                assert reached.classify("toy", "one", top_k=1).label == "3 characters"
            with (
                Client(url, tls=unknown, token="a-key-of-the-tests", retries=0, timeout=5) as refused,
                pytest.raises(ServerError),
            ):
                refused.classify("toy", "one")
        with Client(served.http_url, tls=known, token="no-key") as refused, pytest.raises(ServerError, match="API key"):
            refused.classify("toy", "one")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--host", "0.0.0.0", "--tls-cert", "CERT", "--tls-key", "KEY"], "--api-key-file"),
        (["--tls-cert", "CERT"], "--tls-key"),
        (["--tls-client-ca", "CERT"], "--tls-key"),
        (["--tls-cert", "KEY", "--tls-key", "KEY"], "PEM"),
        (["--api-key-file", "/nowhere"], "can't be read"),
        (["--api-key-file", "/dev/null"], "is not a regular file"),
        (["--api-key-file", "EMPTY"], "no API key"),
        (["--api-key-file", "SHORT"], "Line 3 of"),
        (["--max-body", "0"], "--max-body"),
        (["--allowed-host", "models.example:80"], "without a port"),
        (["--cors-origin", "http://localhost:3000/"], "without a path"),
    ],
)
def test_unprotected_or_unusable_options_are_refused_at_the_start(
    repository: Path,
    tmp_path: Path,
    options: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    (tmp_path / "keys").write_text("# of the laptop\n\nshort-key\n")
    (tmp_path / "empty").touch()
    files = {"CERT": certificate, "KEY": key, "SHORT": str(tmp_path / "keys"), "EMPTY": str(tmp_path / "empty")}
    given = [files.get(option, option) for option in options]
    monkeypatch.delattr(process, "spawn")  # Triton is not started
    assert main(["serve", str(repository), *given]) == 2
    assert words in capsys.readouterr().err


def health(served: ServeProcess, seconds: float = 2) -> int:
    """Return the status of /health, or 0 if there is no answer."""
    connection = http.client.HTTPConnection(address(served), timeout=seconds)
    with suppress(TimeoutError):
        connection.request("GET", "/health")
        return connection.getresponse().status
    return 0


def test_a_hanging_triton_and_its_recovery_are_reported(served: ServeProcess) -> None:
    os.kill(served.server, signal.SIGSTOP)
    served.wait_for_words("Triton has answered nothing for")
    wait_until(lambda: health(served, 0.2) == 503)
    os.kill(served.server, signal.SIGCONT)
    wait_until(lambda: health(served) == 200, "/health is good as soon as requests are answered", 2)
    assert post(served, JSON)[0] == 200
    served.wait_for_words("Triton answers again after")
