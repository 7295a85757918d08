"""Rules of deployments: hfx's own files break none, and each planted mistake triggers exactly one rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from hfx.cli import main
from hfx.deploy import compose, docker, kserve, kubernetes
from hfx.deploy.check import RULES, lint
from hfx.deploy.deployment import Deployment, open_deployment
from hfx.deploy.options import Cluster, EndpointOptions, Scale, Service
from hfx.deploy.sagemaker.aws import CUDA_13_AMI
from hfx.deploy.sagemaker.endpoint import open_endpoint
from hfx.deploy.sagemaker.requests import Upload, bodies
from hfx.deploy.sizing import Sizing, size
from tests.rigs.files.repositories import build

IMAGE = "nvcr.io/nvidia/tritonserver:26.07-py3"
POD: dict[str, Any] = {
    "containers": [
        {
            "name": "triton",
            "image": IMAGE,
            "args": ["tritonserver", "--model-repository=/models", "--exit-timeout-secs=20"],
        }
    ],
}
SERVICE: dict[str, Any] = {
    "image": IMAGE,
    "command": "tritonserver --model-repository=/models",
    "shm_size": "1gb",
    "stop_grace_period": "1m",
    "ports": ["127.0.0.1:8000:8000"],
}
ECR = "763104351884.dkr.ecr.eu-west-1.amazonaws.com/sagemaker-tritonserver:26.05-py3"
VARIABLES = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "m", "SAGEMAKER_TRITON_LOG_VERBOSE": "false"}
FILES: dict[str, Any] = {
    "deployment.yaml": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "m"},
        "spec": {"template": {"spec": POD}},
    },
    "compose.yaml": {"services": {"triton": SERVICE, "grafana": {"image": "grafana", "ports": ["3000:3000"]}}},
    "create-model.json": {"ModelName": "m", "PrimaryContainer": {"Image": ECR, "Environment": VARIABLES}},
    "create-endpoint-config.json": {
        "ProductionVariants": [{"InstanceType": "ml.g6.xlarge", "InferenceAmiVersion": CUDA_13_AMI}]
    },
}

Plant = Callable[[dict[str, Any]], Any]


def pod(files: dict[str, Any]) -> dict[str, Any]:
    return files["deployment.yaml"]["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def container(files: dict[str, Any]) -> dict[str, Any]:
    return pod(files)["containers"][0]  # type: ignore[no-any-return]


def service(files: dict[str, Any]) -> dict[str, Any]:
    return files["compose.yaml"]["services"]["triton"]  # type: ignore[no-any-return]


def variant(files: dict[str, Any]) -> dict[str, Any]:
    return files["create-endpoint-config.json"]["ProductionVariants"][0]  # type: ignore[no-any-return]


def variables(files: dict[str, Any]) -> dict[str, Any]:
    return files["create-model.json"]["PrimaryContainer"]["Environment"]  # type: ignore[no-any-return]


MISTAKES: tuple[tuple[str, Plant], ...] = (
    ("HFX902", lambda files: container(files)["args"].append("--strict-readiness=false")),
    ("HFX902", lambda files: service(files).update(command="sh -c 'exec tritonserver --strict-readiness false'")),
    ("HFX903", lambda files: container(files)["args"].append("--model-control-mode=poll")),
    ("HFX904", lambda files: container(files).update(image="nvcr.io/nvidia/tritonserver:24.10-py3")),
    ("HFX931", lambda files: service(files).pop("shm_size")),
    ("HFX932", lambda files: service(files).pop("stop_grace_period")),
    ("HFX933", lambda files: service(files).update(ports=["8000:8000"])),
    ("HFX933", lambda files: service(files).update(ports=[{"target": 8000, "published": 8000}])),
    ("HFX941", lambda files: variant(files).update(ServerlessConfig={})),
    ("HFX942", lambda files: variant(files).pop("InferenceAmiVersion")),
    ("HFX943", lambda files: variables(files).pop("SAGEMAKER_TRITON_LOG_VERBOSE")),
    ("HFX944", lambda files: variables(files).pop("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME")),
)


def put(folder: Path, files: dict[str, Any]) -> Path:
    for name, value in files.items():
        text = json.dumps(value) if name.endswith(".json") else yaml.safe_dump(value)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_deployment_without_mistakes_has_no_findings(tmp_path: Path) -> None:
    assert lint(put(tmp_path, FILES)) == []


@pytest.mark.parametrize(("rule", "plant"), MISTAKES, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(MISTAKES)])
def test_a_planted_mistake_makes_one_rule_speak(rule: str, plant: Plant, tmp_path: Path) -> None:
    files = deepcopy(FILES)
    plant(files)
    found = lint(put(tmp_path, files))
    assert {finding.rule for finding in found} == {rule}
    assert all(finding.message and "https://" in finding.fix for finding in found)


@pytest.mark.parametrize(
    "change", [{"environment": {"HFX_API_KEY_FILE": "/k"}}, {"command": "hfx serve /m --tls-client-ca /ca --drain 10"}]
)
def test_ports_of_a_server_that_asks_for_keys_may_be_open(change: dict[str, Any], tmp_path: Path) -> None:
    files = deepcopy(FILES)
    service(files).update(ports=["8000:8000"], **change)
    assert lint(put(tmp_path, files)) == []


def test_a_file_that_is_a_template_is_named(tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_text("kind: {{ .Values.kind }}\n  image: tritonserver\n", encoding="utf-8")
    assert [(finding.rule, finding.path) for finding in lint(tmp_path)] == [("HFX901", "deployment.yaml")]


MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 20))


@pytest.mark.parametrize("text", [MERGES, "[" * 200_000, "a: &a [*a]\nb: *c", "\0", "a: !!python/object:os.x {}"])
def test_a_hostile_file_is_a_finding(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "b.json").write_text("[" * 200_000, encoding="utf-8")
    assert [(finding.rule, finding.path) for finding in lint(tmp_path)] == [("HFX901", "a.yaml"), ("HFX901", "b.json")]


def test_every_rule_has_a_mistake_and_a_title_of_its_own() -> None:
    assert {rule.id for rule in RULES} == {rule for rule, _ in MISTAKES} | {"HFX901"}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.title for rule in RULES)


@pytest.mark.parametrize(
    "value", [None, [], "", 5, {"spec": []}, {"spec": {"template": {"spec": {"containers": [7]}}}}]
)
def test_files_of_another_structure_have_no_findings(value: Any, tmp_path: Path) -> None:
    document = {"kind": "Deployment", **value} if isinstance(value, dict) else value
    assert lint(put(tmp_path, {"a.yaml": document, "b.json": document, "c.yml": {"services": value}})) == []


DIGITS = "9" * 5000  # more than Python makes a number of


@pytest.mark.parametrize(
    "document",
    [
        {"ModelName": "m", "Containers": 5},
        {"services": {"a": {"image": "tritonserver:26.07"}}},
        {"services": {"a": {"image": "tritonserver:26.07", "command": f"tritonserver --exit-timeout-secs={DIGITS}"}}},
        {"services": {"a": {"image": "tritonserver:26.07", "stop_grace_period": f"{DIGITS}s"}}},
        {
            "kind": "Pod",
            "spec": {
                "containers": [
                    {"command": ["tritonserver"], "lifecycle": {"preStop": {"exec": {"command": ["sleep", DIGITS]}}}}
                ]
            },
        },
    ],
    ids=range(5),
)
def test_a_value_that_no_platform_takes_breaks_no_rule_of_hfx(document: dict[str, Any], tmp_path: Path) -> None:
    assert not {"HFX901"} & {finding.rule for finding in lint(put(tmp_path, {"a.yaml": document, "b.json": document}))}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return open_deployment(build(tmp_path / "repository"), ["m"])


def sized(deployment: Deployment) -> Sizing:
    return size(deployment, Scale(), {})


WRITERS: dict[str, Callable[[Deployment, Path], Any]] = {
    "kubernetes": lambda made, out: kubernetes.write(made, sized(made), Cluster(), out),
    "kserve": lambda made, out: kserve.write(made, sized(made), Service("s3://models/m"), out),
    "knative": lambda made, out: kserve.write(made, sized(made), Service("s3://models/m", canary=10), out),
    "compose": lambda made, out: compose.write(made, out),
    "docker": lambda made, out: docker.write(made, out),
}


@pytest.mark.parametrize("target", WRITERS)
def test_what_hfx_writes_breaks_no_rule(
    target: str, deployment: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    WRITERS[target](deployment, tmp_path / "out")
    assert main(["deploy", "check", str(tmp_path / "out"), "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert (checked["differences"], checked["findings"]) == ([], [])


@pytest.mark.parametrize("kind", [{"instance_type": "ml.c7i.xlarge"}, {"serverless": True}])
def test_the_calls_to_sagemaker_break_no_rule(kind: dict[str, Any], tmp_path: Path) -> None:
    deployment = open_deployment(build(tmp_path / "repository"), ["m"], triton="26.05")
    role = "arn:aws:iam::123456789012:role/hfx"
    endpoint = open_endpoint(deployment, "", EndpointOptions(role=role, region="eu-west-1", **kind))
    (tmp_path / "out").mkdir()
    upload = Upload("m.tar.gz", f"{endpoint.bucket}/m.tar.gz", 1)
    assert lint(put(tmp_path / "out", bodies(endpoint, "0", (upload,)))) == []


def test_a_folder_that_hfx_did_not_write_is_checked_by_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = deepcopy(FILES)
    container(files)["args"].append("--strict-readiness=false")
    assert main(["deploy", "check", str(put(tmp_path, files))]) == 7
    out, err = capsys.readouterr()
    assert "HFX902 error deployment.yaml" in out and "breaks the rules in 1 place." in err
