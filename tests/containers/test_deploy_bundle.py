"""A bundle in the unmodified base image, by the lines of docs/deploy.md, and behind SageMaker's start script."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import httpx
import pytest

from hfx.deploy import bundle
from hfx.deploy.deployment import Deployment, open_deployment
from hfx.deploy.options import EndpointOptions
from hfx.deploy.sagemaker.endpoint import open_endpoint
from hfx.deploy.sagemaker.target import write
from hfx.deploy.wheels import requirements
from tests.containers import images
from tests.containers.containers import HTTP, answers, running, status
from tests.containers.images import run
from tests.rigs.checkpoints.reciting_generator import Recital
from tests.rigs.files.documents import commands
from tests.rigs.files.wheels import HERE, wheels_for
from tests.rigs.machine.waiting import wait_until

pytestmark = pytest.mark.container

[LINE] = commands("docs/deploy.md", "docker run")
PING = "http://127.0.0.1:8080/ping"


def packages(deployment: Deployment) -> bundle.Packages:
    """Packages for the Python of the base image, which is that of these tests; numpy is in the image."""
    return bundle.Packages(HERE, wheels_for(requirements(deployment, with_numpy=False)), with_numpy=False)


def test_a_bundle_answers_in_the_unmodified_image(engine: None, folder: Path) -> None:
    deployment = open_deployment(folder / "model_repository", ["sentiment", "stories"])
    bundle.write(deployment, folder / "bundle", packages(deployment))
    assert images.base() in LINE
    with running(LINE, folder, serves=False) as container:
        wait_until(lambda: status(f"{HTTP}/v2/health/ready") == 200 or container.running.poll() is not None, "ready")
        answers(container)
        [path] = [path.parent for path in (folder / "bundle").glob("*/1/packages/liveness")]
        module = f"PYTHONPATH=/models/{path.relative_to(folder / 'bundle')}"
        verdict = container.exec(
            "env", module, "python3", "-B", "-m", "liveness", HTTP, "http://127.0.0.1:8002/metrics"
        )
        assert verdict.startswith("healthy: sentiment, stories")


@pytest.mark.skipif(not images.SAGEMAKER_SERVE, reason="AWS's start script: HFX_TEST_SAGEMAKER_SERVE=FILE names it")
def test_the_archive_answers_behind_the_start_script_of_sagemaker(engine: None, folder: Path) -> None:
    """A stop of that container does not drain, as the start script does not pass the signal on."""
    endpoint, deployment = (
        folder / "endpoint",
        open_deployment(folder / "model_repository", ["stories"], triton="26.05"),
    )
    settings = EndpointOptions("arn:aws:iam::123456789012:role/hfx", "eu-west-1", instance_type="ml.c7i.xlarge")
    write(deployment, open_endpoint(deployment, "", settings), endpoint, packages(deployment), force=False)
    with tarfile.open(endpoint / "model.tar.gz") as archive:
        archive.extractall(folder / "archive", filter="data")
    variables = json.loads((endpoint / "create-model.json").read_text())["PrimaryContainer"]["Environment"]
    (folder / "environment").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    line = (
        'docker run --rm --shm-size 1g --env-file environment -v "$PWD/archive:/opt/ml/model:ro" -p 127.0.0.1:8080:8080'
    )
    with running(f"{line} {images.sagemaker()} serve", folder, serves=False) as container:
        wait_until(lambda: status(PING) == 200 or container.running.poll() is not None, "ping")
        inputs = [
            {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]},
            {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [60]},
        ]
        answer = httpx.post(PING.replace("ping", "invocations"), json={"inputs": inputs}, timeout=60)
        assert answer.status_code == 200, container.log
        outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
        assert outputs["text_output"] == [Recital().text("a", 60)]
        run("docker", "stop", "--time", "2", container.name)
        assert container.exit_code == 137
