"""`hfx deploy --arch`: what is refused for a processor, and the instance types of SageMaker that have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.deploy.arch import MACHINES
from hfx.deploy.deployment import open_deployment
from hfx.deploy.options import Arch, EndpointOptions
from hfx.deploy.sagemaker.aws import arch_of
from hfx.deploy.sagemaker.endpoint import open_endpoint
from hfx.deploy.sagemaker.requests import Upload, bodies
from hfx.errors import UsageError
from tests.rigs.files.repositories import build, on_openvino, seal
from tests.rigs.files.sagemaker_model import problems

ROLE = "arn:aws:iam::123456789012:role/service-role/hfx"
OWN_IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/triton:26.05-py3"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return build(tmp_path / "repository")


def test_a_model_on_openvino_is_refused(repository: Path) -> None:
    on_openvino(repository)
    with pytest.raises(UsageError, match="'m' needs OpenVINO, which hfx no longer runs"):
        open_deployment(seal(repository), ["m"])
    assert open_deployment(repository, ["m"], device="gpu").names == ("m",)


@pytest.mark.parametrize(
    ("instance_type", "own"),
    [
        *((f"ml.{family}.xlarge", "arm64") for family in ("c6g", "c6gd", "c6gn", "c7g", "c8g", "m8g", "r7gd", "r8g")),
        *((f"ml.{family}.xlarge", "amd64") for family in ("c7i", "m5d", "r7i", "g4dn", "g5", "g6e")),
    ],
)
def test_an_instance_is_accepted_for_its_own_processor_alone(instance_type: str, own: Arch, repository: Path) -> None:
    assert arch_of(instance_type) == own
    deployment = open_deployment(repository, ["m"], arch=own, triton="26.05")
    settings = EndpointOptions(role=ROLE, region="eu-west-1", instance_type=instance_type)
    endpoint = open_endpoint(deployment, OWN_IMAGE, settings)
    calls = bodies(endpoint, "0123456789", (Upload("m.tar.gz", "s3://bucket/m.tar.gz", 1),))
    assert problems("sagemaker", "CreateEndpointConfig", calls["create-endpoint-config.json"]) == []
    [other] = set(MACHINES) - {own}
    with pytest.raises(UsageError, match=f"{instance_type} has {own} processors, not {other}") as refused:
        open_endpoint(replace(deployment, arch=other), OWN_IMAGE, settings)
    assert f"--arch {own}" in refused.value.fix


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--instance-type", "ml.c7g.xlarge"), "image of AWS for arm64"),  # AWS has none: the type has chosen arm64
        (("--instance-type", "ml.c7g.xlarge", "--arch", "amd64"), "not amd64"),
        (("--instance-type", "ml.c7i.xlarge", "--arch", "arm64", "--image", OWN_IMAGE), "not arm64"),
    ],
)
def test_the_command_takes_the_processor_of_the_instance_unless_it_is_given(
    words: tuple[str, ...], reason: str, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ("--repository", str(repository), "--output", str(tmp_path / "out"))
    assert main(["deploy", "sagemaker", "m", *folders, "--role", ROLE, "--region", "eu-west-1", *words]) == 2
    assert reason in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "out").exists()
