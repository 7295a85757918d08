"""Models that fail to load: error messages, kept logs, and the other models that are served anyway."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.errors import ServerError, UsageError
from hfx.triton import EmbeddedServer, models
from hfx.triton.workspace import KEPT_LOGS, sweep
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers import installed_triton
from tests.rigs.servers.serve_process import FREE_PORTS, HFX, infer, serving
from tests.rigs.servers.short_servers import regions
from tests.rigs.servers.toy_models import MODEL, PYTHON, ensemble, loading, write_model, write_ticks, write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]
NO_TOKENIZER = loading("raise ValueError('no tokenizer')")
SLOW = loading("time.sleep(60)")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "repository")


def test_every_model_that_does_not_load_is_named_with_its_reason(repository: Path) -> None:
    write_model(repository, "backless", PYTHON.replace('"python"', '"nonesuch"'), MODEL)
    write_model(repository, "gpu", PYTHON.replace("KIND_CPU", "KIND_GPU"), MODEL)
    (write_model(repository, "versionless", PYTHON, MODEL) / "1").rename(repository / "versionless" / "one")
    write_model(repository, "typo", "max_batch_sise: 3", MODEL)
    write_model(repository, "alone", ensemble("missing"))
    with pytest.raises(ServerError) as caught:
        EmbeddedServer(repository).start()
    message = caught.value.message
    assert "backless: Invalid argument" in message
    assert f"'nonesuch' in {installed_triton.find().backends}" in message
    assert "Install the backend there" in caught.value.fix
    assert "versionless: " in message
    assert "typo: " in message and "max_batch_sise" in message
    assert "alone: " in message and "missing" in message
    if "gpu:" in message:  # a machine without one
        assert "KIND_GPU" in message


def test_a_start_that_exceeds_its_timeout_is_a_server_error(repository: Path) -> None:
    write_model(repository, "slow", PYTHON, SLOW)
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"not ready after 1\.5 s"):
        EmbeddedServer(repository, timeout=1.5).start()
    assert time.monotonic() - began < 10


def serve(repository: Path, *options: str) -> subprocess.Popen[str]:
    command = [*HFX, "serve", str(repository), *FREE_PORTS, *options, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_serve_tells_why_a_model_does_not_load_and_keeps_the_log(repository: Path, temporary: Path) -> None:
    write_model(repository, "broken", PYTHON, NO_TOKENIZER)
    running = serve(repository, "--strict")
    out, messages = running.communicate(timeout=60)
    error = json.loads(out)["error"]
    assert (running.returncode, error["type"]) == (5, "ServerError")
    assert "can't load broken" in error["message"]
    assert "ValueError: no tokenizer" in error["message"]
    assert f"{repository}/broken/1/model.py(8): initialize" in error["message"]
    assert "ValueError: no tokenizer" in messages
    log = Path(error["fix"].split("Its log: ")[1])
    assert "no tokenizer" in log.read_text()
    assert list(temporary.iterdir()) == [log.parent]
    assert list(log.parent.iterdir()) == [log]
    assert regions(log.parent) == []


def test_a_signal_while_the_models_load_leaves_nothing(repository: Path, temporary: Path) -> None:
    write_model(repository, "slow", PYTHON, SLOW)
    running = serve(repository)
    [log] = wait_until(lambda: list(temporary.glob("*/triton.log")))
    wait_until(lambda: "loading: slow" in log.read_text())
    running.send_signal(signal.SIGINT)
    _, messages = running.communicate(timeout=30)
    assert running.returncode == 130, messages
    assert list(temporary.iterdir()) == []


def test_a_model_for_a_gpu_is_refused_before_the_start_where_there_is_none(
    repository: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "GPU_DEVICES", ("nonesuch",))
    (repository / "toy_tokenize" / "configs").mkdir()
    config = (repository / "toy_tokenize" / "config.pbtxt").read_text()
    (repository / "toy_tokenize" / "configs" / "gpu.pbtxt").write_text(config.replace("KIND_CPU", "KIND_GPU"))
    with pytest.raises(UsageError) as caught:
        EmbeddedServer(repository, device="gpu").start()
    assert "toy_tokenize" in caught.value.message and "--device cpu" in caught.value.fix
    assert list(temporary.iterdir()) == []


def test_a_full_gpu_is_named_in_the_first_line_of_the_error(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    reason = "cuda_call.cc:122 CUDA failure 2: out of memory ; GPU=0 ; expr=cudaStreamCreateWithFlags(&stream, 1);"
    write_model(repository, "broken", PYTHON, loading(f"raise RuntimeError({reason!r})"))
    with pytest.raises(ServerError) as caught:
        EmbeddedServer(repository).start()
    assert caught.value.message.startswith("Triton can't load broken: the GPU has too little free memory.\n")
    assert reason in caught.value.message and "or serve with --device cpu." in caught.value.fix


def test_the_logs_of_failed_starts_are_bounded(tmp_path: Path) -> None:
    repository = write_model(tmp_path / "repository", "broken", PYTHON, NO_TOKENIZER).parent
    logs: list[Path] = []
    for _ in range(KEPT_LOGS + 2):
        with pytest.raises(ServerError) as caught:
            EmbeddedServer(repository).start()
        logs.append(Path(caught.value.fix.split("Its log: ")[1]))
        assert logs[-1].exists()
    sweep()
    assert [log.exists() for log in logs] == [False, False] + [True] * KEPT_LOGS


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ("-o size=3m", "/dev/shm has 3 MiB free of 3; the 2 Python processes of these models take 4 to begin with"),
        ("-o ro", "where user 0 can't make files: Read-only file system."),
    ],
)
def test_shared_memory_that_is_small_or_closed_is_said_before_a_model_loads(
    repository: Path, mount: str, message: str, temporary: Path
) -> None:
    write_ticks(repository)
    command = ("unshare", "--mount", "--map-root-user", "sh", "-c")
    mounted = f'mount -t tmpfs {mount} tmpfs /dev/shm && exec "$@"'
    tried = subprocess.run([*command, mounted, "sh", "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"a mount of one's own is not permitted: {tried.stderr}")
    served = [*command, mounted, "sh", *HFX, "serve", str(repository), *FREE_PORTS, "--json"]
    ended = subprocess.run(served, capture_output=True, text=True, timeout=60)
    error = json.loads(ended.stdout)["error"]
    assert (ended.returncode, error["type"]) == (5, "ServerError"), ended.stderr
    assert message in error["message"] and "--shm-size" in error["fix"] and "medium: Memory" in error["fix"]
    assert "can't load" not in ended.stderr
    assert list(temporary.iterdir()) == []


def test_broken_models_are_warned_of_and_the_other_models_served(repository: Path) -> None:
    write_model(repository, "broken", PYTHON, NO_TOKENIZER)
    write_model(repository, "alone", ensemble("broken"))
    write_model(repository, "damaged", PYTHON, MODEL)
    (repository / "damaged" / "hfx.json").write_text("{")
    with serving(repository) as served:
        assert served.ready["models"] == ["toy"]
        assert infer(served.http_url, "toy", "four") == "4 characters"
        assert "ValueError: no tokenizer" in served.words and "damaged" in served.words
        assert served.words.count("The other models are served.") >= 2
        with Client(served.ready["grpc_url"]) as client:
            assert client.is_ready()
        served.running.terminate()
        assert served.end() == 0, served.words
