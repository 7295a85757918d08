"""`hfx deploy kubernetes`: validity by Kubernetes' own schemas, the source of its numbers, and refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

from hfx.cli import main
from hfx.deploy.deployment import DeployedModel, Deployment, open_deployment
from hfx.deploy.kubernetes import write
from hfx.deploy.options import Arch, Cluster, Scale
from hfx.deploy.sizing import QUEUE, SLOTS, WAITING, Measured, Sizing, size
from hfx.errors import UsageError
from hfx.front.settings import Limits
from hfx.perf.results import ServerSide, write_result
from tests.rigs.files import perf_runs
from tests.rigs.files.documents import DOCUMENTS, ROOT
from tests.rigs.files.repositories import build

CUSTOM_KINDS = {"PodMonitor"}  # of operators: Kubernetes has no schema for them
VERSION = "1.37"
HOSTILE = ("a b", "a\nkind: Pod", 'a"', "{{ a }}", "$(id)", "a;id", "../a", "-a", "A", "a" * 300, "ä")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "repository")


@pytest.fixture
def encoder(repository: Path) -> Deployment:
    return open_deployment(repository, ["m"], drain=7)


@pytest.fixture
def generator(encoder: Deployment) -> Deployment:
    """The encoder's deployment, changed to a generator of 32 slots."""
    [model] = encoder.models
    needs = replace(model.needs, slots=32, queue=64, batch=0, cache=100 << 20)
    return replace(encoder, models=(DeployedModel(model.manifest, model.precision, needs),))


def documents(folder: Path) -> Iterator[tuple[Path, Any]]:
    """Yield every document of every manifest."""
    for path in sorted(folder.rglob("*.yaml")):
        if path.name != "prometheus-adapter.yaml":
            for document in yaml.safe_load_all(path.read_text()):
                yield path, document


def kinds(folder: Path) -> dict[str, Any]:
    return {document["kind"]: document for _, document in documents(folder)}


def wrote(folder: Path, deployment: Deployment, cluster: Cluster | None = None, **scale: Any) -> Path:
    write(deployment, sized(deployment, **scale), cluster or Cluster(), folder / "out")
    return folder / "out"


def test_folders_that_documents_give_kubectl_hold_objects_of_kubernetes_alone(
    encoder: Deployment, tmp_path: Path
) -> None:
    """kubectl reads every YAML and JSON file of a folder, but not of its subfolders."""
    lines = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in DOCUMENTS)
    targets = re.findall(r"^kubectl (?:apply|replace --force) (?:-f|--filename) (\S+)", lines, re.MULTILINE)
    assert targets
    out = wrote(tmp_path, encoder)
    for target in targets:
        path = out.joinpath(*Path(target).parts[1:])  # beneath --output
        for file in [path] if path.is_file() else [*path.glob("*.yaml"), *path.glob("*.json")]:
            for document in yaml.safe_load_all(file.read_text()):
                assert {"apiVersion", "kind"} <= set(document), file


def sized(deployment: Deployment, *measured: Measured, **scale: Any) -> Sizing:
    return size(deployment, Scale(**scale), {each.model: each for each in measured})


@pytest.mark.parametrize(("device", "arch"), [("cpu", "arm64"), ("gpu", "amd64")])
@pytest.mark.parametrize(
    ("cluster", "scale"),
    [
        (Cluster(), Scale()),
        (Cluster(claim="models.v1", clients=("ingress", "apps")), Scale(replicas=1, max_replicas=1)),
        (Cluster(claim="models", api_keys="keys", tls="certificate.v1"), Scale()),
    ],
)
def test_every_manifest_is_valid_in_the_schemas_of_kubernetes(
    repository: Path, tmp_path: Path, device: str, arch: Arch, cluster: Cluster, scale: Scale
) -> None:
    deployment = open_deployment(repository, ["m"], device=device, arch=arch)
    write(deployment, size(deployment, scale, {}), cluster, tmp_path / "out")
    for path, document in documents(tmp_path / "out"):
        try:
            kubernetes_validate.validate(document, VERSION, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            assert document["kind"] in CUSTOM_KINDS, path
    found = kinds(tmp_path / "out")
    scales = scale.max_replicas != scale.replicas
    assert ("HorizontalPodAutoscaler" in found) == ("PodDisruptionBudget" in found) == scales
    assert ("replicas" in found["Deployment"]["spec"]) == (not scales)
    [container] = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (device == "gpu")
    for kind in ("Deployment", "Job"):
        assert found[kind]["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/arch": arch}


def test_the_pod_is_closed_as_far_as_the_server_can_bear(encoder: Deployment, tmp_path: Path) -> None:
    """Pod security standard `restricted`, a read-only root, and a volume for every written folder."""
    for kind in ("Deployment", "Job"):
        spec = kinds(wrote(tmp_path / kind, encoder))[kind]["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        [container] = spec["containers"]
        assert container["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


SECURED = Cluster(api_keys="front-keys", tls="front-tls")


def test_ports_depend_on_keys_and_prometheus_reaches_the_metrics_port_only(encoder: Deployment, tmp_path: Path) -> None:
    for number, (cluster, open_ports) in enumerate(((Cluster(), ["http", "grpc"]), (SECURED, ["http"]))):
        found = kinds(wrote(tmp_path / str(number), encoder, cluster))
        requests, scrapes = found["NetworkPolicy"]["spec"]["ingress"]
        assert [port["port"] for port in requests["ports"]] == open_ports
        assert [port["port"] for port in found["Service"]["spec"]["ports"]] == [
            {"http": 8000, "grpc": 8001}[name] for name in open_ports
        ]
        assert [port["port"] for port in scrapes["ports"]] == ["scrapes"]
        assert [endpoint["port"] for endpoint in found["PodMonitor"]["spec"]["podMetricsEndpoints"]] == ["scrapes"]
        [container] = found["Deployment"]["spec"]["template"]["spec"]["containers"]
        assert {port["name"] for port in container["ports"]} == {*open_ports, "scrapes"}
        probed = {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe")}
        assert probed == {port["containerPort"] for port in container["ports"] if port["name"] == "scrapes"}
        assert ("--insecure" in container["args"]) == (cluster is not SECURED)
    assert SECURED.warnings == () and "no API key" in Cluster().warnings[0]
    assert "plain text" in Cluster(api_keys="k").warnings[0] and "no API key" in Cluster(tls="t").warnings[0]


def test_the_command_warns_of_a_server_that_nothing_protects(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(repository, tmp_path) == 0
    assert "requires no API key" in capsys.readouterr().err
    assert "requires no API key" in (tmp_path / "out/README.md").read_text()
    assert deploy(repository, tmp_path, "--api-key-secret", "k", "--tls-secret", "t", "--force") == 0
    assert "key" not in capsys.readouterr().err
    text = (tmp_path / "out/README.md").read_text()
    assert "create secret generic k --from-file=keys --from-file=token" in text and "requires no API key" not in text


def test_the_grace_holds_the_pause_and_both_drains(encoder: Deployment, tmp_path: Path) -> None:
    spec = kinds(wrote(tmp_path, encoder, pre_stop=4))["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "4"]
    assert container["args"][container["args"].index("--drain") + 1] == "7"
    assert spec["terminationGracePeriodSeconds"] > 4 + 2 * 7


def test_numbers_come_from_the_manifest_and_say_so(encoder: Deployment, generator: Deployment, tmp_path: Path) -> None:
    sizing = sized(encoder)
    assert sizing.millicores.value == 4000 and "intra_op_thread_count" in sizing.millicores.source
    assert sizing.memory.value == encoder.memory.value >> 20
    assert encoder.memory.value > encoder.shared_memory.value + 3 * Limits().bodies
    assert [(signal.metric, signal.target.value) for signal in sizing.signals] == [(WAITING, 32)]  # half a batch of 64
    assert [(signal.metric, signal.target.value) for signal in sized(generator).signals] == [(QUEUE, 8), (SLOTS, 25)]
    out = wrote(tmp_path, generator)
    metrics = kinds(out)["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert [metric["pods"]["target"]["averageValue"] for metric in metrics] == ["8", "25"]
    lines = (out / "manifests/deployment.yaml").read_text().splitlines()
    lines += (out / "manifests/autoscaler.yaml").read_text().splitlines()
    for number in (
        "cpu:",
        "memory:",
        "ephemeral-storage:",
        "terminationGrace",
        "sizeLimit:",
        "minReplicas:",
        "averageV",
    ):
        found = [line for line in lines if line.strip().startswith(number)]
        assert found and all("  # " in line for line in found), number


def test_numbers_come_from_a_measured_result(encoder: Deployment, generator: Deployment) -> None:
    load = Measured("m", 80.0, cores=2.31, memory=1 << 30, source="load.json")
    sizing = sized(encoder, load, rate=500.0, wait=0.25)
    assert sizing.millicores.value == 2400  # 2.31 + 80 x 0.25 ms, in tenths
    assert sizing.memory.value == 1280 + 512 + 1024 + 256  # 1.25 x 1 GiB; requests, /dev/shm, /tmp
    assert sizing.replicas.value == 9  # 500 / (0.7 x 80)
    assert [signal.target.value for signal in sizing.signals] == [20]  # 0.25 s x 80 requests/s
    assert [signal.target.value for signal in sized(generator, load, wait=0.25).signals] == [20, 25]
    fast = replace(load, requests_per_second=800.0)
    assert (
        sized(generator, fast, wait=0.25).signals[0].target.value == 32
    )  # half of the queue, which refuses more than 64
    figures = (sizing.millicores, sizing.memory, sizing.replicas, sizing.signals[0].target)
    assert all("load.json" in figure.source or "measured" in figure.source for figure in figures)
    assert sized(replace(encoder, cpus=replace(encoder.cpus, value=6, source="--cpus")), load).millicores.value == 6000


def deploy(repository: Path, folder: Path, *words: str) -> int:
    return main(["deploy", "kubernetes", "m", "--repository", str(repository), "--output", str(folder / "out"), *words])


def test_the_command_takes_the_best_load_that_was_answered(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ServerSide(cores=3.0, memory=2 << 30)
    runs = [
        perf_runs.run(throughput=50.0, callers=4, server=server),
        perf_runs.run(throughput=90.0, callers=8, server=server),
        perf_runs.run(throughput=120.0, callers=64, server=server, succeeded=80),
        perf_runs.run(throughput=500.0, callers=8, device="gpu"),
        perf_runs.run(throughput=700.0, callers=8, model="n"),
    ]
    machine = replace(perf_runs.MACHINE, processor="A\nkind: Pod # processor")
    write_result(perf_runs.result(*runs, machine=machine), tmp_path / "load.json")
    assert deploy(repository, tmp_path, "--from", str(tmp_path / "load.json"), "--wait", "1", "--rate", "100") == 0
    found = kinds(tmp_path / "out")
    assert "Pod" not in found
    hpa = found["HorizontalPodAutoscaler"]["spec"]
    assert hpa["metrics"][0]["pods"]["target"]["averageValue"] == "90"
    text = (tmp_path / "out/manifests/autoscaler.yaml").read_text()
    assert "90.0 requests/s" in text and "load.json: 8 callers on A kind: Pod" in text

    write_result(perf_runs.result(runs[2], runs[4]), tmp_path / "other.json")
    assert deploy(repository, tmp_path, "--from", str(tmp_path / "other.json"), "--force") == 2
    assert "no load of m on cpu" in capsys.readouterr().err
    assert deploy(repository, tmp_path, "--rate", "100", "--force") == 2
    assert "--rate needs one model" in capsys.readouterr().err


def test_prometheus_can_read_every_query(encoder: Deployment, generator: Deployment, tmp_path: Path) -> None:
    for deployment in (encoder, generator):
        for signal in sized(deployment).signals:
            promql_parser.parse(signal.query('pod=~"m-.*"'))
        out = wrote(tmp_path / deployment.names[0] / str(deployment.models[0].is_generator), deployment)
        rules = yaml.safe_load((out / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
        scaled = kinds(out)["HorizontalPodAutoscaler"]["spec"]["metrics"]
        assert {rule["name"]["as"] for rule in rules} == {metric["pods"]["metric"]["name"] for metric in scaled}
        for rule in rules:
            promql_parser.parse(rule["seriesQuery"])
            query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'pod="a"').replace("<<.GroupBy>>", "pod")
            promql_parser.parse(query)


@pytest.mark.parametrize("text", HOSTILE)
def test_names_that_a_manifest_could_read_otherwise_are_refused(text: str) -> None:
    for build_cluster in (
        lambda: Cluster(claim=text),
        lambda: Cluster(monitoring=text),
        lambda: Cluster(clients=(text,)),
        lambda: Cluster(api_keys=text),
        lambda: Cluster(tls=text),
    ):
        with pytest.raises(UsageError, match="can't be a"):
            build_cluster()


@pytest.mark.parametrize(
    "scale",
    [
        {"replicas": 0},
        {"replicas": 3, "max_replicas": 2},
        {"pre_stop": -1},
        {"wait": 0.0},
        {"wait": float("nan")},
        {"rate": -1.0},
    ],
)
def test_numbers_out_of_range_are_refused(encoder: Deployment, scale: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="out of range"):
        sized(encoder, **scale)


def test_a_service_can_not_begin_with_a_digit(encoder: Deployment, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--name"):
        wrote(tmp_path, replace(encoder, name="1m"))


def test_the_job_needs_no_more_than_the_image_has() -> None:
    """The image has hfx[front], tokenizers and one runtime, and none of the packages that export."""
    modules = "hfx.cli.deploy.check, hfx.cli.verify, hfx.deploy.server_check, hfx.exporter.verify"
    program = f"import sys, {modules}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"onnx", "onnx_ir", "torch", "transformers", "scipy", "safetensors"} & set(done.stdout.split())
