"""Messages and exit codes of a container that may not or can't serve; API keys and client certificates."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.containers.containers import HTTP, running, status
from tests.containers.images import SERVER
from tests.rigs.clients.certificates import make_certificate
from tests.rigs.machine.waiting import wait_until

pytestmark = pytest.mark.container

KEY = "correct-horse-battery-staple"
MODELS = '-v "$PWD/model_repository:/models:ro"'
LINE = f"docker run --rm --init --shm-size 1g {MODELS} -p 127.0.0.1:8000:8000"
OPEN = "-e HFX_INSECURE=1"


@pytest.fixture(scope="module")
def secrets(folder: Path) -> Path:
    """Key files and certificates that user 1000 may read, except for `closed`."""
    place = folder / "secrets"
    place.mkdir()
    (place / "keys").write_text(f"{KEY}\n")
    (place / "closed").write_text(f"{KEY}\n")
    make_certificate(place, "server")
    make_certificate(place, "client")
    for path in place.iterdir():
        path.chmod(0o600 if path.name == "closed" else 0o644)
    return place


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("", 2, ["HFX_API_KEY_FILE", "HFX_INSECURE=1"]),
        ("-e HFX_API_KEY_FILE=/run/secrets/closed", 2, ["Permission denied", "user (1000) can read"]),
        ("-e HFX_API_KEY_FILE=/run/secrets/none", 2, ["No such file"]),
        (
            "-e HFX_TLS_CERT=/run/secrets/server.pem -e HFX_TLS_KEY=/run/secrets/closed",
            2,
            ["Permission denied", "user (1000) can read"],
        ),
        (f"{OPEN} --read-only --tmpfs /tmp:size=64k", 5, ["MiB free", "own copy of /models/", "Give it room"]),
        (f"{OPEN} --shm-size 1m", 5, ["/dev/shm has 1 MiB free", "docker run --shm-size 1g"]),
        (f"{OPEN} --tmpfs /dev/shm:mode=755,size=64m", 5, ["/dev/shm, where user 1000", "docker run --shm-size 1g"]),
        (f"{OPEN} -v /var/empty-models:/models:ro", 2, ["has no model"]),
    ],
    ids=[
        "no key",
        "closed key",
        "no key file",
        "closed TLS key",
        "full /tmp",
        "small /dev/shm",
        "closed /dev/shm",
        "no models",
    ],
)
def test_a_container_that_cannot_serve_exits_with_the_reason(
    options: str, code: int, words: list[str], image: str, folder: Path, secrets: Path
) -> None:
    line = f'{LINE} -v "$PWD/secrets:/run/secrets:ro" {options} {SERVER}'
    if "/models:ro" in options:
        line = line.replace(MODELS, "")
    with running(line, folder, serves=False) as container:
        assert container.exit_code == code, container.log
        assert all(word in container.log for word in words), container.log


def test_a_key_file_makes_requests_need_a_key(image: str, folder: Path, secrets: Path) -> None:
    """This is the first row of the table of docs/serving.md."""
    options = '-v "$PWD/secrets/keys:/run/secrets/keys:ro" -e HFX_API_KEY_FILE=/run/secrets/keys'
    with running(f"{LINE} {options} {SERVER}", folder) as container:
        url = f"{container.http_url}/v2/models/sentiment"
        assert [status(url), status(url, "wrong" * 8), status(url, KEY)] == [401, 401, 200]
        assert "gRPC listens on 127.0.0.1 only" in container.log


def test_a_client_ca_makes_requests_need_a_client_certificate(image: str, folder: Path, secrets: Path) -> None:
    """This is the second row of the table of docs/serving.md."""
    files = {"TLS_CERT": "server.pem", "TLS_KEY": "server.key", "TLS_CLIENT_CA": "client.pem"}
    options = " ".join(f"-e HFX_{name}=/run/secrets/{file}" for name, file in files.items())
    line = f'{LINE} --no-healthcheck -v "$PWD/secrets:/run/secrets:ro" {options} {SERVER}'
    trusting = ssl.create_default_context(cafile=secrets / "server.pem")
    known = ssl.create_default_context(cafile=secrets / "server.pem")
    known.load_cert_chain(secrets / "client.pem", secrets / "client.key")
    url = HTTP.replace("http", "https") + "/v2/models/sentiment"
    with running(line, folder, serves=False) as container:
        wait_until(lambda: container.running.poll() is not None or "Ready." in container.log, "ready")
        assert status(url, context=known) == 200, container.log
        assert status(url, context=trusting) == 0
        assert "can use the models" not in container.log


def test_a_plain_triton_of_the_image_answers(image: str, folder: Path) -> None:
    # The base of these tests has no onnxruntime backend, which the encoder's net needs without hfx.
    generator = " ".join(
        f'-v "$PWD/model_repository/{name}:/models/{name}:ro"' for name in ("stories", "stories_stream")
    )
    line = f"{LINE.replace(MODELS, generator)} {SERVER} python3 -B /opt/hfx/arguments.py cpu"
    with running(line, folder, serves=False) as container:
        wait_until(lambda: status(f"{HTTP}/v2/health/ready") == 200 or container.running.poll() is not None, "ready")
        verdict = container.exec("env", "PYTHONPATH=/opt/hfx", "python3", "-B", "-m", "liveness", HTTP)
        assert verdict == "healthy: stories, stories_stream\n"
