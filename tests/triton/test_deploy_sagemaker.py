"""SageMaker's archive on the embedded server with the arguments of AWS's container: answers of /invocations."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from hfx.client import Client
from hfx.deploy import bundle
from hfx.deploy.deployment import open_deployment
from hfx.deploy.options import EndpointOptions
from hfx.deploy.sagemaker.endpoint import open_endpoint
from hfx.deploy.sagemaker.local import serving
from hfx.deploy.sagemaker.target import write
from hfx.deploy.wheels import requirements
from hfx.triton import EmbeddedServer
from tests.rigs.files.wheels import HERE, wheels_for
from tests.rigs.machine.tiers import full

pytestmark = pytest.mark.triton

SETTINGS = EndpointOptions(role="arn:aws:iam::123456789012:role/hfx", region="eu-west-1", instance_type="ml.c7i.xlarge")


def written(repository: Path, name: str, folder: Path) -> Path:
    deployment = open_deployment(repository, [name], triton="26.05")
    # numpy, which would be most of the archive, is this machine's; test_deploy_bundle.py has a Python without it.
    packages = bundle.Packages(HERE, wheels_for(requirements(deployment, with_numpy=False)), with_numpy=False)
    write(deployment, open_endpoint(deployment, "", SETTINGS), folder / name, packages, force=False)
    return folder / name


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as any_socket:
        return int(any_socket.getsockname()[1])


def answered(port: int, text: str) -> dict[str, object]:
    """Return the outputs of a request in the container's format."""
    body = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]}
    response = httpx.post(f"http://127.0.0.1:{port}/invocations", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return {output["name"]: output["data"] for output in response.json()["outputs"]}


def addresses() -> set[str]:
    """Return the local addresses on which this machine listens at port 8080, in hexadecimal."""
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return {row[1] for row in rows[1:] if row[3] == "0A" and row[1].endswith(f":{8080:04X}")}


@pytest.mark.parametrize(
    ("name", "text", "output"),
    [
        ("notes", "Anna met Ben in the park. They ate cake.", "text_output"),
        full("sentiment", "A lovely garden, and kind people.", "label"),
    ],
)
def test_a_model_answers_at_loopback_alone(
    name: str, text: str, output: str, writers: Path, writing_server: EmbeddedServer, tmp_path: Path
) -> None:
    before = addresses()
    with Client(writing_server.grpc_url) as client:
        expected = client.classify(name, text).label if output == "label" else client.generate(name, text).text
    port = free_port()
    with serving(written(writers, name, tmp_path), port):
        assert answered(port, text)[output] == [expected]
        assert addresses() == before, "Triton's own port must not exist outside its network"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/ping")
