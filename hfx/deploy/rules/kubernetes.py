"""Rules for Kubernetes and KServe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hfx.deploy.rules.subject import KSERVE_RUNTIMES, TEMPLATED, Container, Files, Table, table, tables
from hfx.repository.subject import Problem, rule

DOCS = "https://kubernetes.io/docs"
PROBES = f"{DOCS}/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/"
ISSUES = "https://github.com/triton-inference-server/server/issues"
SHARED_MEMORY = "/dev/shm"
GRACE_SECONDS = 30  # Kubernetes' default
REMOVED = ("autoscaling/v2beta1", "autoscaling/v2beta2", "policy/v1beta1", "extensions/v1beta1", "apps/v1beta2")
SERVER_HEALTH = ("/v2/health/live", "/v2/health/ready")
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T|)")


@rule("HFX911", "error", "Use autoscaling/v2, policy/v1 and apps/v1.", f"{DOCS}/reference/using-api/deprecation-guide/")
def removed_api(files: Files) -> Iterator[Problem]:
    """A version of an API that Kubernetes has removed."""
    for document in files.documents:
        version = document.value.get("apiVersion")
        if version in REMOVED:
            yield Problem(document.path, f"{document.title}: Kubernetes does not have {version} any more.")


@rule(
    "HFX912",
    "warning",
    "Mount an emptyDir of medium Memory with a sizeLimit at /dev/shm.",
    "https://github.com/triton-inference-server/python_backend/blob/main/README.md",
)
def little_shared_memory(files: Files) -> Iterator[Problem]:
    """A /dev/shm of 64 MB."""
    for container in files.pods:
        if _shared_memory(container) is None and not container.pod.get("hostIPC"):
            yield container.problem("/dev/shm has 64 MB, in which Triton's Python models exchange tensors.")


@rule(
    "HFX913",
    "error",
    "Raise the limit of memory by the size of /dev/shm.",
    f"{DOCS}/concepts/storage/volumes/#emptydir",
)
def shared_memory_above_limit(files: Files) -> Iterator[Problem]:
    """A limit of memory that /dev/shm alone can reach."""
    for container in files.pods:
        limit = quantity(table(container.value, "resources", "limits").get("memory"))
        size = quantity((_shared_memory(container) or {}).get("sizeLimit"))
        if limit is not None and size is not None and size >= limit:
            yield container.problem("what is in /dev/shm counts to its memory, and may be all of the limit.")


@rule("HFX914", "warning", "Add a startupProbe that waits for as long as the models load.", PROBES)
def liveness_at_start(files: Files) -> Iterator[Problem]:
    """A liveness probe without a startup probe."""
    for container in files.pods:
        if "livenessProbe" in container.value and "startupProbe" not in container.value:
            yield container.problem("the liveness probe can end it while models are still being loaded.")


@rule(
    "HFX915",
    "warning",
    "Send a request to each model: `python3 -m liveness` in images and bundles of hfx.",
    f"{ISSUES}/8604",
)
def liveness_of_server(files: Files) -> Iterator[Problem]:
    """A liveness probe that a dead model passes."""
    for container in files.pods:
        path = table(container.value, "livenessProbe", "httpGet").get("path")
        if path in SERVER_HEALTH:
            yield container.problem(f"{path} stays good when the process of a Python model has died.")


@rule("HFX916", "warning", "Add a readinessProbe of /v2/health/ready, or /health of `hfx serve`.", PROBES)
def ready_at_start(files: Files) -> Iterator[Problem]:
    """Requests before the models are loaded."""
    for container in files.pods:
        probe = container.value.get("readinessProbe")
        if probe is None or table(probe, "httpGet").get("path") == "/v2/health/live":
            yield container.problem("requests come before the models are loaded.")


@rule(
    "HFX917",
    "warning",
    "Set terminationGracePeriodSeconds above preStop and the time for requests in flight.",
    f"{DOCS}/concepts/workloads/pods/pod-lifecycle/#pod-termination",
)
def short_grace(files: Files) -> Iterator[Problem]:
    """A pod that is killed while it answers requests."""
    for container in _with_service(files):
        grace = container.pod.get("terminationGracePeriodSeconds", GRACE_SECONDS)
        needed = _pre_stop_seconds(container) + container.exit_seconds
        if isinstance(grace, int) and grace < needed:
            yield container.problem(f"it is killed after {grace} s; preStop and requests may take {needed} s.")


@rule("HFX918", "warning", "Add a preStop of a few seconds (`sleep 10`).", f"{ISSUES}/6230")
def no_pre_stop(files: Files) -> Iterator[Problem]:
    """A pod that ends while requests are sent to it."""
    for container in _with_service(files):
        if not table(container.value, "lifecycle", "preStop"):
            yield container.problem("Services send it requests for some seconds after SIGTERM, and it refuses them.")


@rule(
    "HFX919",
    "warning",
    "Set runAsNonRoot: true and runAsUser: 1000 (triton-server in NVIDIA's images).",
    f"{DOCS}/concepts/security/pod-security-standards/#restricted",
)
def runs_as_root(files: Files) -> Iterator[Problem]:
    """Triton as root."""
    for container in files.pods:
        contexts = (table(container.pod, "securityContext"), table(container.value, "securityContext"))
        merged = {**contexts[0], **contexts[1]}
        if not merged.get("runAsNonRoot") and not merged.get("runAsUser"):
            yield container.problem("it runs as root, which NVIDIA's images do unless told otherwise.")


@rule(
    "HFX920",
    "warning",
    "Scale by requests that wait: hfx_queue_length, nv_inference_queue_duration_us.",
    f"{DOCS}/tasks/run-application/horizontal-pod-autoscale/#scaling-on-custom-metrics",
)
def scaled_by_processor(files: Files) -> Iterator[Problem]:
    """An autoscaler that reads the processor's load."""
    servers = {container.title for container in files.pods}
    for document in files.of_kind("HorizontalPodAutoscaler"):
        target = table(document.value, "spec", "scaleTargetRef")
        if f"{target.get('kind')} {target.get('name')}" in servers and _reads_processor(table(document.value, "spec")):
            message = "a full batch keeps the processor as busy as a long queue does."
            yield Problem(document.path, f"{document.title}: {message}")


@rule(
    "HFX921",
    "warning",
    "Write a ServingRuntime of your own: `hfx deploy kserve`.",
    "https://github.com/kserve/kserve/blob/master/config/runtimes/kserve-tritonserver.yaml",
)
def old_kserve_runtime(files: Files) -> Iterator[Problem]:
    """KServe's own runtime for Triton."""
    for document in files.of_kind("InferenceService"):
        predictor = table(document.value, "spec", "predictor")
        model = table(predictor, "model")
        chosen = str(model.get("runtime", "kserve-tritonserver"))
        if "triton" in predictor or (
            table(model, "modelFormat").get("name") == "triton" and chosen == "kserve-tritonserver"
        ):
            yield Problem(
                document.path, f"{document.title}: KServe's runtime kserve-tritonserver has a Triton of 2023."
            )


def quantity(value: Any) -> float | None:
    """A Kubernetes quantity such as 2Gi in bytes; None if `value` is not one."""
    match = QUANTITY.fullmatch(str(value))
    return float(match[1]) * UNITS[match[2]] if match else None


def _shared_memory(container: Container) -> Table | None:
    """The emptyDir in memory that is mounted at /dev/shm."""
    names = [
        mount.get("name")
        for mount in tables(container.value.get("volumeMounts"))
        if str(mount.get("mountPath")).rstrip("/") == SHARED_MEMORY
    ]
    volumes = (
        table(volume, "emptyDir") for volume in tables(container.pod.get("volumes")) if volume.get("name") in names
    )
    return next((volume for volume in volumes if volume.get("medium") == "Memory"), None)


def _with_service(files: Files) -> Iterator[Container]:
    """The containers to which a Service may send requests; without KServe's, which KServe drains itself."""
    kinds = set(TEMPLATED) - set(KSERVE_RUNTIMES)
    return (container for container in files.pods if container.document.kind in kinds)


def _pre_stop_seconds(container: Container) -> int:
    hook = table(container.value, "lifecycle", "preStop")
    seconds = table(hook, "sleep").get("seconds")
    if isinstance(seconds, int):
        return seconds
    command = table(hook, "exec").get("command")
    text = " ".join(map(str, command)) if isinstance(command, list) else ""
    match = re.search(r"\bsleep ([0-9]{1,9})", text)
    return int(match[1]) if match else 0


def _reads_processor(spec: Table) -> bool:
    by_resource = [
        each for each in tables(spec.get("metrics")) if each.get("type") in ("Resource", "ContainerResource")
    ]
    return bool(by_resource) or "targetCPUUtilizationPercentage" in spec
