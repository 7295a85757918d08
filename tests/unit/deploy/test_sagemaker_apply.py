"""The calls of a written folder against moto's SageMaker, S3 and autoscaling: create, repeat, update, delete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from hfx.deploy.deployment import open_deployment
from hfx.deploy.options import EndpointOptions
from hfx.deploy.sagemaker.apply import apply, delete, scale, wait
from hfx.deploy.sagemaker.endpoint import open_endpoint
from hfx.deploy.sagemaker.requests import Upload, bodies
from hfx.errors import ServerError, UsageError
from tests.rigs.files.repositories import build

REGION = "eu-west-1"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty account with one bucket; no credentials of this machine."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        boto3.client("s3", REGION).create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield boto3.client("sagemaker", REGION)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A written folder with a short archive."""
    write(tmp_path, "1")
    return tmp_path / "out"


def write(place: Path, version: str) -> None:
    """Write the folder's calls with instance types that moto knows, as it checks them."""
    if not (place / "repository").exists():
        build(place / "repository")
    settings = EndpointOptions(
        role="arn:aws:iam::123456789012:role/hfx",
        region=REGION,
        bucket="s3://bucket/hfx",
        instance_type="ml.m5.xlarge",
        max_instances=3,
        scale_target=100.0,
    )
    endpoint = open_endpoint(open_deployment(place / "repository", ["m"], arch="amd64", triton="26.05"), "", settings)
    (place / "out").mkdir(exist_ok=True)
    (place / "out/model.tar.gz").write_text(version)
    upload = Upload("model.tar.gz", f"{endpoint.bucket}/models/{version}/model.tar.gz", 1)
    for name, body in bodies(endpoint, version, (upload,)).items():
        (place / "out" / name).write_text(json.dumps(body))


def test_the_endpoint_is_made_scaled_and_deleted(aws: Any, folder: Path) -> None:
    notes: list[str] = []
    assert apply(folder, notes.append) == "m"
    wait(folder, poll_seconds=0)
    scale(folder, notes.append)
    assert aws.describe_endpoint(EndpointName="m")["EndpointConfigName"] == "m-1"
    stored = boto3.client("s3", REGION).get_object(Bucket="bucket", Key="hfx/models/1/model.tar.gz")
    assert stored["Body"].read() == b"1"
    scaling = boto3.client("application-autoscaling", REGION)
    assert len(scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]) == 1
    delete(folder, notes.append)
    assert aws.list_endpoints()["Endpoints"] == aws.list_models()["Models"] == []
    assert aws.list_endpoint_configs()["EndpointConfigs"] == []
    assert scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"] == []


def test_a_repeated_call_makes_nothing_twice_and_a_new_version_updates(aws: Any, folder: Path, tmp_path: Path) -> None:
    apply(folder, lambda note: None)
    notes: list[str] = []
    apply(folder, notes.append)
    assert "s3://bucket/hfx/models/1/model.tar.gz is there already." in notes
    assert len(aws.list_models()["Models"]) == len(aws.list_endpoint_configs()["EndpointConfigs"]) == 1
    assert notes[-1] == "The endpoint m is as written."
    write(tmp_path, "2")
    with pytest.raises(NotImplementedError, match="update_endpoint"):  # the one call that moto 5.2 has not
        apply(folder, notes.append)
    assert {each["ModelName"] for each in aws.list_models()["Models"]} == {"m-1", "m-2"}


def test_deleting_twice_says_what_was_not_there(aws: Any, folder: Path) -> None:
    notes: list[str] = []
    delete(folder, notes.append)
    assert len(notes) == 4 and all("was not there" in note for note in notes)


def test_a_wait_without_credentials_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(ServerError, match="credentials"):
        wait(folder, poll_seconds=0)


def test_an_unknown_profile_of_aws_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(ServerError, match="nobody"):
        apply(folder, lambda note: None)


@pytest.mark.parametrize("text", ["[]", "{}", '{"EndpointName": "m"}', "[" * 100_000])
def test_an_incomplete_folder_is_refused_before_any_call(folder: Path, text: str) -> None:
    (folder / "create-endpoint.json").write_text(text)
    with pytest.raises(UsageError, match="can't be read"):
        apply(folder, lambda note: None)


def test_a_missing_archive_is_refused(aws: Any, folder: Path) -> None:
    (folder / "model.tar.gz").unlink()
    with pytest.raises(UsageError, match=r"model.tar.gz is missing"):
        apply(folder, lambda note: None)


def test_awss_refusal_keeps_its_words_and_another_folder_is_refused(aws: Any, folder: Path, tmp_path: Path) -> None:
    text = (folder / "create-model.json").read_text()
    (folder / "create-model.json").write_text(text.replace("s3://bucket", "s3://missing"))
    with pytest.raises(ServerError, match=r"missing|NoSuchBucket|bucket"):
        apply(folder, lambda note: None)
    with pytest.raises(UsageError, match="can't be read"):
        apply(tmp_path, lambda note: None)
