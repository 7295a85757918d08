"""Rules for any container that runs Triton, for containers of compose files, and for files that can't be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hfx.deploy.rules.subject import Container, Files, tables
from hfx.releases import MINIMUM_SECURE, security_warning
from hfx.repository.subject import Problem, rule

TRITON = "https://github.com/triton-inference-server/server/blob/main"


@rule(
    "HFX901",
    "warning",
    "Render templates first (`helm template`), and check what comes out.",
    "https://helm.sh/docs/helm/helm_template/",
)
def unreadable(files: Files) -> Iterator[Problem]:
    """A file that can't be read."""
    yield from files.unreadable


@rule("HFX902", "error", "Remove the option.", f"{TRITON}/src/command_line_parser.cc")
def ready_without_models(files: Files) -> Iterator[Problem]:
    """Ready without its models."""
    for container in files.containers:
        if container.option("--strict-readiness").lower() in ("false", "0", "off", "no"):
            yield container.problem("with --strict-readiness=false it is ready while models are missing.")


@rule(
    "HFX903",
    "warning",
    "Replace the container when models change, or load them by requests (explicit).",
    f"{TRITON}/docs/user_guide/model_management.md",
)
def polled_repository(files: Files) -> Iterator[Problem]:
    """A repository that is polled."""
    for container in files.containers:
        if container.option("--model-control-mode") == "poll":
            yield container.problem("--model-control-mode=poll can load a model whose files are written in part.")


@rule(
    "HFX904", "warning", f"Use {MINIMUM_SECURE} or later.", "https://nvidia.custhelp.com/app/answers/detail/a_id/5875"
)
def vulnerable_release(files: Files) -> Iterator[Problem]:
    """A Triton release with known vulnerabilities."""
    for container in files.containers:
        if container.tag and (warning := security_warning(container.tag)):
            yield container.problem(warning)


# Compose files


SERVICES = "https://docs.docker.com/reference/compose-file/services"
GRACE_SECONDS = 10  # docker's default
DURATION = re.compile(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
LOCAL = ("127.", "localhost", "[::1]", "::1")


@rule("HFX931", "warning", "Set shm_size: 1gb.", f"{SERVICES}/#shm_size")
def little_shared_memory(files: Files) -> Iterator[Problem]:
    """A service with a /dev/shm of 64 MB."""
    for service in files.services:
        mounts = str(service.value.get("tmpfs", "")) + str(service.value.get("volumes", ""))
        if not service.value.get("shm_size") and service.value.get("ipc") != "host" and "/dev/shm" not in mounts:
            yield service.problem("/dev/shm has 64 MB, in which Triton's Python models exchange tensors.")


@rule("HFX932", "warning", "Set stop_grace_period above it.", f"{SERVICES}/#stop_grace_period")
def short_grace(files: Files) -> Iterator[Problem]:
    """A service that is killed while it answers requests."""
    for service in files.services:
        grace = _seconds(service.value.get("stop_grace_period", f"{GRACE_SECONDS}s"))
        if grace is not None and grace < service.exit_seconds:
            yield service.problem(
                f"it is killed after {grace} s; requests in flight may take {service.exit_seconds} s."
            )


@rule(
    "HFX933",
    "warning",
    "Publish at 127.0.0.1, or ask for keys (`hfx serve --api-key-file`).",
    "https://docs.docker.com/engine/network/port-publishing/",
)
def published_to_all(files: Files) -> Iterator[Problem]:
    """Ports that every machine reaches."""
    for service in files.services:
        ports = [port for port in _published(service) if not port.startswith(LOCAL)]
        if ports and not _asks_for_keys(service):
            yield service.problem(f"{', '.join(ports)} is open to every machine, and Triton asks for no key.")


def _asks_for_keys(service: Container) -> bool:
    """Return whether the service's `hfx serve` answers only callers with a key or a certificate."""
    options = any(service.option(name) for name in ("--api-key-file", "--tls-client-ca"))
    return options or "HFX_API_KEY_FILE" in str(service.value.get("environment"))


def _published(service: Container) -> list[str]:
    """Return the published ports in compose's short syntax, such as 127.0.0.1:8000:8000."""
    ports = service.value.get("ports")
    short = [str(port) for port in ports if not isinstance(port, dict)] if isinstance(ports, list) else []
    long = [f"{each.get('host_ip', '0.0.0.0')}:{each.get('published')}" for each in tables(ports)]
    return [*short, *long]


def _seconds(value: Any) -> int | None:
    match = DURATION.fullmatch(str(value))
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds
