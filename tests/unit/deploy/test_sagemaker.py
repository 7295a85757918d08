"""`hfx deploy sagemaker`: calls valid by AWS's own model, refusals, the role, the archive, and prices."""

from __future__ import annotations

import json
import os
import shlex
import socket
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.deploy.arch import MACHINES, this_arch
from hfx.deploy.check import check_folder
from hfx.deploy.deployment import Deployment, open_deployment
from hfx.deploy.folder import output_folder, render
from hfx.deploy.sagemaker.aws import CUDA_13_AMI, environment, image_of, server_arguments
from hfx.deploy.sagemaker.endpoint import CONFLICTS, Endpoint, EndpointOptions, open_endpoint
from hfx.deploy.sagemaker.local import serving
from hfx.deploy.sagemaker.requests import CALLS, Upload, bodies, policy, trust
from hfx.deploy.sagemaker.target import values, write_archive
from hfx.errors import UsageError
from tests.rigs.files.repositories import build
from tests.rigs.files.sagemaker_model import problems
from tests.rigs.files.wheels import HERE

ROLE = "arn:aws:iam::123456789012:role/service-role/hfx"
REAL_TIME = EndpointOptions(role=ROLE, region="eu-west-1", instance_type="ml.c7i.xlarge")
SERVERLESS = EndpointOptions(role=ROLE, region="eu-west-1", serverless=True)
VPC: dict[str, Any] = {"subnets": ("subnet-0123456789abcdef0",), "security_groups": ("sg-0123456789abcdef0",)}
OWN_IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/triton:26.05-py3"
GPU = {"instance_type": "ml.g6.xlarge"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return build(tmp_path / "repository")


@pytest.fixture
def encoder(repository: Path) -> Deployment:
    return open_deployment(repository, ["m"], arch="amd64", triton="26.05")


@pytest.fixture
def generator(encoder: Deployment) -> Deployment:
    """The same model as if an engine of 8 slots served it."""
    (model,) = encoder.models
    manifest = replace(model.manifest, folders=("m", "m_stream"))
    return replace(encoder, models=(replace(model, manifest=manifest, needs=replace(model.needs, slots=8)),))


def opened(deployment: Deployment, settings: EndpointOptions, image: str = "") -> Endpoint:
    return open_endpoint(deployment, image, settings)


def uploads_of(endpoint: Endpoint) -> tuple[Upload, ...]:
    return tuple(Upload("m.tar.gz", f"{endpoint.bucket}/models/0/m.tar.gz", 20 * 10**9) for _ in endpoint.deployments)


def written(endpoint: Endpoint) -> dict[str, dict[str, Any]]:
    return bodies(endpoint, "0123456789", uploads_of(endpoint))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("encoder", REAL_TIME),
        ("encoder", SERVERLESS),
        ("encoder", replace(SERVERLESS, memory_mb=6144, concurrency=200)),
        ("encoder", replace(REAL_TIME, capture=100, instances=2, max_instances=9, scale_target=600.0, **VPC)),
        ("encoder", replace(REAL_TIME, region="cn-north-1", role=ROLE.replace(":aws:", ":aws-cn:"))),
        ("generator", replace(REAL_TIME, stream=True, max_instances=4)),
        ("generator", replace(REAL_TIME, asynchronous=True, max_instances=4, bucket="s3://bucket/a/b/")),
    ],
)
def test_every_call_is_as_awss_service_model_has_it(
    kind: str, settings: EndpointOptions, request: pytest.FixtureRequest
) -> None:
    made = written(opened(request.getfixturevalue(kind), settings))
    calls = [call for call in CALLS if call.file in made]
    assert len(calls) == len(made) == (5 if settings.max_instances else 3)
    assert [found for call in calls for found in problems(call.service, call.operation, made[call.file])] == []


def test_the_check_against_the_model_finds_what_aws_would_refuse(encoder: Deployment) -> None:
    body = written(opened(encoder, SERVERLESS))["create-endpoint-config.json"]
    variant = body["ProductionVariants"][0]
    variant |= {"InstanceType": "ml.c99.xlarge", "VariantName": "a b", "Unknown": 1}
    variant["ServerlessConfig"]["MaxConcurrency"] = 201
    variant["InferenceAmiVersion"] = "al3"
    found = "\n".join(problems("sagemaker", "CreateEndpointConfig", body))
    assert 'Unknown parameter in ProductionVariants[0]: "Unknown"' in found
    variant.pop("Unknown")
    found = "\n".join(problems("sagemaker", "CreateEndpointConfig", body))
    for text in ("ml.c99.xlarge", "a b", "201", "al3"):
        assert text in found


def test_a_gpu_endpoint_has_the_driver_of_cuda_13(encoder: Deployment) -> None:
    endpoint = opened(replace(encoder, device="gpu"), replace(REAL_TIME, **GPU))
    body = written(endpoint)["create-endpoint-config.json"]
    assert problems("sagemaker", "CreateEndpointConfig", body) == []
    assert body["ProductionVariants"][0]["InferenceAmiVersion"] == CUDA_13_AMI
    assert "VolumeSizeInGB" not in body["ProductionVariants"][0]
    with pytest.raises(UsageError, match="driver older than CUDA 13"):
        opened(replace(encoder, device="gpu"), replace(REAL_TIME, ami="al2-ami-sagemaker-inference-gpu-3-1", **GPU))


def test_several_models_are_containers_that_callers_name(tmp_path: Path, encoder: Deployment) -> None:
    (model,) = encoder.models
    other = replace(model, manifest=replace(model.manifest, name="n_2"))
    endpoint = opened(encoder, REAL_TIME)
    both = replace(endpoint, deployments=(encoder, replace(encoder, name="n-2", models=(other,))))
    body = written(both)["create-model.json"]
    assert problems("sagemaker", "CreateModel", body) == []
    assert [each["ContainerHostname"] for each in body["Containers"]] == ["m", "n-2"]
    assert body["InferenceExecutionConfig"] == {"Mode": "Direct"} and "PrimaryContainer" not in body


CALLS_OF_AN_ENDPOINT = [("encoder", REAL_TIME), ("encoder", SERVERLESS), ("gpu", replace(REAL_TIME, **GPU))]
DRIVER = {"ProductionVariants": [{"InstanceType": "ml.g6.xlarge"}]}
MISTAKES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("HFX941", "create-endpoint-config.json", {"ProductionVariants": [{"ServerlessConfig": {}, "InstanceType": "m"}]}),
    (
        "HFX941",
        "create-endpoint-config.json",
        {"ProductionVariants": [{"ServerlessConfig": {}}], "DataCaptureConfig": {}},
    ),
    ("HFX942", "create-endpoint-config.json", DRIVER),
    ("HFX943", "create-model.json", {"SAGEMAKER_TRITON_LOG_VERBOSE": "true"}),
    ("HFX944", "create-model.json", {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": ""}),
)


def write_calls(endpoint: Endpoint, folder: Path) -> dict[str, dict[str, Any]]:
    """Write a folder with the calls of `endpoint`, and return them."""
    calls = written(endpoint)
    with output_folder(folder, "sagemaker", endpoint.deployments[0]) as staged:
        for name, body in calls.items():
            (staged / name).write_text(json.dumps(body))
    return calls


@pytest.mark.parametrize(("device", "settings"), CALLS_OF_AN_ENDPOINT)
def test_the_calls_that_hfx_writes_have_no_mistake(
    device: str, settings: EndpointOptions, encoder: Deployment, tmp_path: Path
) -> None:
    deployment = replace(encoder, device="gpu") if device == "gpu" else encoder
    write_calls(opened(deployment, settings), tmp_path / "out")
    checked = check_folder(tmp_path / "out")
    assert (checked.target, checked.differences, checked.findings) == ("sagemaker", (), ())


@pytest.mark.parametrize(("rule", "file", "edit"), MISTAKES)
def test_an_edited_call_has_the_mistake_that_it_was_given(
    rule: str, file: str, edit: dict[str, Any], encoder: Deployment, tmp_path: Path
) -> None:
    body = write_calls(opened(encoder, REAL_TIME), tmp_path / "out")[file]
    (body["PrimaryContainer"]["Environment"] if file == "create-model.json" else body).update(edit)
    (tmp_path / "out" / file).write_text(json.dumps(body))
    checked = check_folder(tmp_path / "out")
    assert [(difference.path, difference.kind) for difference in checked.differences] == [(file, "changed")]
    assert [(finding.rule, finding.path) for finding in checked.findings] == [(rule, file)]
    assert checked.errors == (rule in ("HFX941", "HFX942"))


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"EndpointConfigName": "m", "ProductionVariants": [7]}'])
def test_a_damaged_call_is_a_difference(text: str, encoder: Deployment, tmp_path: Path) -> None:
    write_calls(opened(encoder, REAL_TIME), tmp_path / "out")
    (tmp_path / "out/create-endpoint-config.json").write_text(text)
    checked = check_folder(tmp_path / "out")
    assert [(difference.path, difference.kind) for difference in checked.differences] == [
        ("create-endpoint-config.json", "changed")
    ]
    assert checked.findings == ()


OPTIONS: dict[str, dict[str, Any]] = {
    "--serverless": {"serverless": True, "instance_type": ""},
    "--async": {"asynchronous": True},
    "--stream": {"stream": True},
    "--capture": {"capture": 10},
    "--subnet": VPC,
    "--instance-type": {"instance_type": "ml.c7i.xlarge"},
    "--budget": {"budget": 1.0},
    "--ami": {"ami": CUDA_13_AMI},
    "--max-instances": {"max_instances": 2},
}


@pytest.mark.parametrize("conflict", CONFLICTS, ids=lambda each: f"{each.first} {each.second}")
def test_options_that_exclude_each_other_are_refused_with_the_source(conflict: Any, encoder: Deployment) -> None:
    settings = replace(REAL_TIME, **(OPTIONS[conflict.first] | OPTIONS.get(conflict.second, {})))
    changes: dict[str, Any] = {"--device gpu": {"device": "gpu"}, "--arch arm64": {"arch": "arm64"}}
    deployment = replace(encoder, **changes.get(conflict.second, {}))
    if conflict.second == "several models":
        deployment = replace(encoder, models=encoder.models * 2)
    with pytest.raises(UsageError) as refused:
        opened(deployment, settings)
    assert conflict.first in refused.value.message and conflict.second in refused.value.message
    assert conflict.source in refused.value.fix


@pytest.mark.parametrize(
    ("values", "image", "reason"),
    [
        ({"role": ""}, "", "--role is missing"),
        ({"role": "hfx"}, "", "not a role"),
        ({"role": "arn:aws:iam::123456789012:role/a b"}, "", "not a role"),
        ({"region": ""}, "", "region is not known"),
        ({"region": "eu-west-1; id"}, "", "no Triton image of AWS"),
        ({}, "docker.io/triton:1", "not in Amazon ECR"),
        ({}, "123456789012.dkr.ecr.us-east-1.amazonaws.com/triton:26.05-py3", "image is in us-east-1"),
        ({"instance_type": ""}, "", "No instance is chosen"),
        ({"instance_type": "ml.eia2.medium"}, "", "Elastic Inference has ended"),
        ({"instance_type": "ml.inf2.xlarge"}, "", "Neuron"),
        ({"instance_type": "c7i.xlarge"}, "", "not an instance type"),
        ({"bucket": "s3://b"}, "", "not an S3 location"),
        ({"bucket": "s3://bucket/$(id)"}, "", "not an S3 location"),
        ({"subnets": ("subnet-0123456789abcdef0",)}, "", "needs a security group"),
        ({"subnets": ("subnet-x",), "security_groups": VPC["security_groups"]}, "", "not an identifier"),
        ({"capture": 101}, "", "out of range"),
        ({"instances": 0}, "", "out of range"),
        ({"max_instances": 0, "scale_target": 1.0}, "", "out of range"),
        ({"max_instances": 2}, "", "load at which to add an instance"),
        ({"ami": CUDA_13_AMI}, "", "GPU instances"),
        ({"instance_type": "", "budget": 1.0}, "", "hfx has none"),
        ({"serverless": True, "instance_type": "", "memory_mb": 1000}, "", "1000 MB"),
    ],
)
def test_values_that_aws_or_a_shell_would_take_otherwise_are_refused(
    values: dict[str, Any], image: str, reason: str, encoder: Deployment
) -> None:
    with pytest.raises(UsageError, match=reason):
        opened(encoder, replace(REAL_TIME, **values), image)


def test_a_device_needs_an_instance_that_has_it(encoder: Deployment) -> None:
    with pytest.raises(UsageError, match="has no GPU"):
        opened(replace(encoder, device="gpu"), REAL_TIME)


def test_a_model_too_large_for_serverless_is_refused_with_its_size(encoder: Deployment) -> None:
    large = replace(encoder, memory=replace(encoder.memory, value=7 << 30))
    with pytest.raises(UsageError, match="7168 MiB"):
        opened(large, SERVERLESS)
    fitting = opened(replace(encoder, memory=replace(encoder.memory, value=2 << 30)), SERVERLESS)
    assert fitting.memory_mb == 2048


def test_awss_image_is_that_of_the_region_and_of_a_release_that_it_has() -> None:
    assert image_of("cn-north-1", "26.05", "amd64").startswith("727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/")
    with pytest.raises(UsageError, match=r"no image of Triton 26\.07"):
        image_of("eu-west-1", "26.07", "amd64")
    with pytest.raises(UsageError, match="for arm64"):
        image_of("eu-west-1", "26.05", "arm64")


def test_the_container_loads_a_generators_engine_and_answers_as_generate(
    encoder: Deployment, generator: Deployment
) -> None:
    plain, engine = (environment(each.models[0], "26.05", stream=False) for each in (encoder, generator))
    assert "SAGEMAKER_TRITON_INFERENCE_TYPE" not in plain and "_stream" not in str(plain)
    assert engine["SAGEMAKER_TRITON_INFERENCE_TYPE"] == "generate"
    loaded = [each for each in server_arguments(engine) if each.startswith("--load-model=")]
    assert loaded == ["--load-model=m_stream", "--load-model=m"]
    assert "SAGEMAKER_TRITON_INFERENCE_TYPE" not in environment(generator.models[0], "25.02", stream=False)
    with pytest.raises(UsageError, match="can't stream"):
        environment(generator.models[0], "25.02", stream=True)
    with pytest.raises(UsageError, match="nothing to stream"):
        environment(encoder.models[0], "26.05", stream=True)


@pytest.mark.parametrize("settings", [REAL_TIME, SERVERLESS, replace(REAL_TIME, asynchronous=True)])
def test_the_readme_has_a_line_for_every_call_and_file(
    settings: EndpointOptions, encoder: Deployment, tmp_path: Path
) -> None:
    endpoint = opened(encoder, replace(settings, region="us-east-1"))
    made = written(endpoint)
    render("sagemaker", tmp_path, values(endpoint, uploads_of(endpoint), made))
    lines = [shlex.split(line) for line in (tmp_path / "README.md").read_text().splitlines() if line.startswith("aws ")]
    files = [line[-1].removeprefix("file://") for line in lines if "--cli-input-json" in line]
    assert files == [call.file for call in CALLS if call.file in made]
    assert ["aws", "s3", "cp", "m.tar.gz", uploads_of(endpoint)[0].uri] in lines
    assert sum(line[2].startswith("invoke-endpoint") for line in lines) == 1


def test_the_role_may_do_what_the_options_need_and_no_more(encoder: Deployment) -> None:
    plain = opened(encoder, REAL_TIME)
    rich = opened(encoder, replace(REAL_TIME, asynchronous=True, capture=5, **VPC))
    few, many = (
        {each["Sid"]: each for each in policy(endpoint, uploads_of(endpoint))["Statement"]}
        for endpoint in (plain, rich)
    )
    assert set(few) == {"Archives", "Image", "Registry", "Logs", "Metrics"}
    assert set(many) - set(few) == {"Requests", "Answers", "Network"}
    assert {sid for sid, each in many.items() if "*" in each["Resource"]} == {"Registry", "Metrics", "Network"}
    assert not any(action.endswith("*") for each in many.values() for action in each["Action"])
    assert few["Archives"]["Resource"] == ["arn:aws:s3:::sagemaker-eu-west-1-123456789012/m/models/0/m.tar.gz"]
    assert trust(plain)["Statement"][0]["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}


def test_equal_folders_give_equal_archives_with_empty_folders_in_them(tmp_path: Path) -> None:
    for name, order in (("a", 1), ("b", -1)):
        for file in ("m/config.pbtxt", "m_net/1/model.onnx")[::order]:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(file)
            os.utime(tmp_path / name / file, (order + 5, order + 5))
        (tmp_path / name / "m/1").mkdir()
        write_archive(tmp_path / name, tmp_path / f"{name}.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert archive.getnames() == ["m", "m/1", "m/config.pbtxt", "m_net", "m_net/1", "m_net/1/model.onnx"]


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    rows = {"ml.a1.big": (1, 64, 512), "ml.c7i.tiny": (0.01, 1, 1), "ml.c7g.big": (0.02, 64, 512)}
    rows |= {"ml.c7i.xlarge": (0.25, 4, 8), "ml.c7i.2xlarge": (0.5, 8, 16)}
    table = {
        name: {"price": price, "vcpus": cpus, "memory_gib": gib, "gpus": 0} for name, (price, cpus, gib) in rows.items()
    }
    head = {"source": "example", "date": "2026-11-01", "region": "eu-west-1", "currency": "USD"}
    (tmp_path / "prices.json").write_text(json.dumps(head | {"instances": table}))
    return tmp_path / "prices.json"


def test_a_budget_buys_the_cheapest_instance_that_the_model_fits(prices: Path, encoder: Deployment) -> None:
    settings = replace(REAL_TIME, instance_type="", prices=prices)
    endpoint = opened(encoder, replace(settings, budget=1.0))
    assert endpoint.instance_type == "ml.c7i.xlarge" and endpoint.price is not None
    assert endpoint.price.source == "example, 2026-11-01"
    assert (
        opened(replace(encoder, arch="arm64"), replace(settings, budget=1.0), OWN_IMAGE).instance_type == "ml.c7g.big"
    )
    with pytest.raises(UsageError, match=r"ml\.c7i\.xlarge: 0\.25 USD"):
        opened(encoder, replace(settings, budget=0.4, instances=2))
    with pytest.raises(UsageError, match="prices of eu-west-1"):
        opened(encoder, replace(settings, budget=1.0, region="us-east-1"))
    text = prices.read_text()
    for damaged in (text.replace('"memory_gib": 8', '"memory_gib": Infinity'), text.replace('"date"', '"day"')):
        prices.write_text(damaged)
        with pytest.raises(UsageError, match="not a price file"):
            opened(encoder, replace(settings, budget=1.0))


def test_trying_an_archive_refuses_a_taken_port_and_another_folder(encoder: Deployment, tmp_path: Path) -> None:
    (tmp_path / "create-model.json").write_text(json.dumps(written(opened(encoder, REAL_TIME))["create-model.json"]))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port}"), serving(tmp_path, port):
            pass
    with pytest.raises(UsageError, match="has no container"), serving(tmp_path / "repository"):
        pass
    with pytest.raises(UsageError, match=r"m.tar.gz can't be unpacked"), serving(tmp_path, 0):
        pass
    (tmp_path / "hfx.json").write_text('{"choices": {}}')
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "hfx.json", "encoder/hfx.json")
    with pytest.raises(UsageError, match="no packages"), serving(tmp_path, 0):
        pass
    [other] = set(MACHINES) - {this_arch()}
    (tmp_path / "hfx.json").write_text(json.dumps({"choices": {"bundle": {"python": HERE, "arch": other}}}))
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "hfx.json", "encoder/hfx.json")
    with pytest.raises(UsageError, match=f"Python {HERE} on {other}"), serving(tmp_path, 0):
        pass
