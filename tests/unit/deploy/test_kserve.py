"""`hfx deploy kserve`: a matching runtime and service, in both of KServe's modes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

from hfx.deploy.deployment import DeployedModel, Deployment, open_deployment
from hfx.deploy.kserve import write
from hfx.deploy.options import Arch, Scale, Service
from hfx.deploy.sizing import size
from hfx.errors import UsageError
from tests.rigs.files.repositories import build

VERSION = "1.37"
URI = "s3://models/m"


@pytest.fixture
def generator(tmp_path: Path) -> Deployment:
    deployment = open_deployment(build(tmp_path / "repository"), ["m"], arch="amd64")
    [model] = deployment.models
    needs = replace(model.needs, slots=32, queue=64, batch=0)
    return replace(deployment, models=(DeployedModel(model.manifest, model.precision, needs),))


def wrote(deployment: Deployment, folder: Path, **service: Any) -> tuple[Any, Any]:
    """Return the runtime and the service."""
    write(deployment, size(deployment, Scale(), {}), Service(URI, **service), folder / "out")
    runtime, inference = (
        yaml.safe_load((folder / "out" / f"{name}.yaml").read_text())
        for name in ("serving-runtime", "inference-service")
    )
    return runtime, inference


@pytest.mark.parametrize("canary", [None, 10])
def test_the_service_names_the_runtime_whose_pod_kubernetes_takes(
    generator: Deployment, tmp_path: Path, canary: int | None
) -> None:
    runtime, inference = wrote(generator, tmp_path, canary=canary)
    model = inference["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"] and model["storageUri"] == URI
    assert model["modelFormat"]["name"] in {one["name"] for one in runtime["spec"]["supportedModelFormats"]}
    [container] = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container" and container["args"][2] == "/mnt/models"
    pod = {key: runtime["spec"][key] for key in ("containers", "volumes")}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m"}, "spec": pod}
    kubernetes_validate.validate(document, VERSION, strict=True)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_keda_asks_prometheus_for_what_waits_and_what_is_used(generator: Deployment, tmp_path: Path) -> None:
    runtime, inference = wrote(generator, tmp_path, namespace="prod")
    predictor = inference["spec"]["predictor"]
    assert inference["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "keda"
    assert "canaryTrafficPercent" not in predictor and "scaleMetric" not in predictor  # not with KEDA
    metrics = [metric["external"] for metric in predictor["autoScaling"]["metrics"]]
    assert [metric["target"]["value"] for metric in metrics] == ["8", "25"]  # a quarter and four fifths of 32 slots
    for metric, name in zip(metrics, ("hfx_queue_length", "hfx_slots_used"), strict=True):
        query = metric["metric"]["query"]
        promql_parser.parse(query)
        assert name in query and 'namespace="prod",pod=~"m-predictor-.*"' in query
    [container] = runtime["spec"]["containers"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert predictor["terminationGracePeriodSeconds"] > pause + 2 * generator.drain


def test_a_canary_runs_on_knative_which_takes_less(generator: Deployment, tmp_path: Path) -> None:
    runtime, inference = wrote(generator, tmp_path, canary=10)
    predictor = inference["spec"]["predictor"]
    assert inference["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Knative"
    assert (predictor["canaryTrafficPercent"], predictor["scaleMetric"], predictor["scaleTarget"]) == (
        10,
        "concurrency",
        25,
    )
    assert not {"autoScaling", "terminationGracePeriodSeconds"} & set(predictor)
    [container] = runtime["spec"]["containers"]
    assert "lifecycle" not in container and len(container["ports"]) == 1


@pytest.mark.parametrize(
    ("arch", "canary", "selects"),
    [("amd64", None, True), ("arm64", None, True), ("amd64", 10, False), ("arm64", 10, True)],
)
def test_pods_run_on_nodes_of_the_processor_and_knative_is_not_given_a_needless_selector(
    arch: Arch, canary: int | None, selects: bool, generator: Deployment, tmp_path: Path
) -> None:
    _, inference = wrote(replace(generator, arch=arch), tmp_path, canary=canary)
    predictor = inference["spec"]["predictor"]
    assert predictor.get("nodeSelector") == ({"kubernetes.io/arch": arch} if selects else None)
    needs_flag = "kubernetes.podspec-nodeselector" in (tmp_path / "out/README.md").read_text()
    assert needs_flag == (canary is not None and selects)


def bundled(deployment: Deployment, **record: str) -> Deployment:
    """Return `deployment` as if its models were those of a bundle for Python 3.12."""
    made = {"device": "cpu", "python": "3.12", "packages": "m/1/packages", **record}
    models = [replace(each, manifest=replace(each.manifest, choices={"bundle": made})) for each in deployment.models]
    return replace(deployment, models=tuple(models))


@pytest.mark.parametrize("canary", [None, 10])
def test_a_bundle_runs_in_the_image_of_its_release_with_its_own_probe(
    generator: Deployment, tmp_path: Path, canary: int | None
) -> None:
    runtime, _ = wrote(bundled(generator), tmp_path, canary=canary)
    [container] = runtime["spec"]["containers"]
    assert container["image"] == generator.release.image
    assert container["args"][:2] == ["tritonserver", "--model-repository=/mnt/models"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    liveness = container["livenessProbe"]["exec"]["command"]
    assert "PYTHONPATH=/mnt/models/m/1/packages" in liveness and liveness[-1].endswith(":8002/metrics")
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == "8002"
    pod = {key: runtime["spec"][key] for key in ("containers", "volumes")}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m"}, "spec": pod}
    kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("record", [{"device": "gpu"}, {"python": "3.11"}, {"arch": "arm64"}])
def test_a_bundle_for_another_machine_is_refused(generator: Deployment, tmp_path: Path, record: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="The bundle is for"):
        wrote(bundled(generator, **record), tmp_path)
    mixed = replace(generator, models=(*bundled(generator).models, *generator.models))
    with pytest.raises(UsageError, match="Some of the models"):
        wrote(mixed, tmp_path)


@pytest.mark.parametrize(
    "service",
    [
        {"storage_uri": "models"},
        {"storage_uri": 's3://a"\nkind: Pod'},
        {"storage_uri": "s3://a b"},
        {"storage_uri": "file:///etc"},
        {"prometheus": "prometheus:9090"},
        {"prometheus": "http://a$(id)"},
        {"namespace": "A_b"},
        {"canary": 101},
    ],
)
def test_ambiguous_values_for_kserve_are_refused(service: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Service(**{"storage_uri": URI, **service})
