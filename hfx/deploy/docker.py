"""The target `docker`: a Dockerfile that adds the models to hfx's image, and a script that builds and runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hfx.deploy.deployment import TEMPORARY_BYTES, Deployment
from hfx.deploy.folder import copy_models, output_folder, render, render_text

MODELS_FOLDER = "models"
STOP_MARGIN_SECONDS = 10  # time between the end of the drains and the killing of the container


def write(deployment: Deployment, output: Path, force: bool = False) -> None:
    """Write the folder: Dockerfile, run.sh, README.md and the models."""
    with output_folder(output, "docker", deployment, force) as folder:
        copy_models(deployment, folder / MODELS_FOLDER)
        render("docker", folder, values(deployment))
        (folder / "run.sh").chmod(0o755)


def write_dockerfile(folder: Path, template_values: dict[str, Any]) -> None:
    """Write only the Dockerfile, for another target that builds the image."""
    text = render_text("docker/Dockerfile.j2", template_values)
    (folder / "Dockerfile").write_text(text, encoding="utf-8")


def values(deployment: Deployment) -> dict[str, Any]:
    """Return the values for the templates of `docker` and `compose`."""
    return {
        "deployment": deployment,
        "image": image(deployment),
        "base_lines": base_lines(deployment),
        "stop_seconds": stop_seconds(deployment.drain),
        "command": serve_command(deployment),
        "models_folder": MODELS_FOLDER,
        "temporary_bytes": TEMPORARY_BYTES,
    }


def image(deployment: Deployment) -> str:
    """Return the name of the image that the folder builds."""
    return f"{deployment.name}:{deployment.release.tag}-{deployment.device}"


def stop_seconds(drain: int) -> int:
    """Return the most seconds that `hfx serve --drain` takes after SIGTERM: it drains HTTP, and then gRPC."""
    return 2 * drain + STOP_MARGIN_SECONDS


def serve_command(deployment: Deployment, models: str = "/models") -> list[str]:
    """Return the container's command: `hfx serve`, which serves the folder `models` with the image's tritonserver.

    The command starts only with API keys (HFX_API_KEY_FILE), client certificates, or HFX_INSECURE=1 in a trusted
    network.
    """
    return [
        *("hfx", "serve", models, "--with", "local", "--device", deployment.device),
        *("--host", "0.0.0.0"),
        *("--http-port", str(deployment.ports.http), "--grpc-port", str(deployment.ports.grpc)),
        *("--drain", str(deployment.drain), "--strict"),
    ]


def is_own_image(deployment: Deployment) -> bool:
    """Return whether the user named the image."""
    return deployment.image != deployment.release.hfx_image(deployment.device)


def base_lines(deployment: Deployment) -> list[list[str]]:
    """Return the commands that build the base image in a checkout of hfx; none for the user's own image."""
    command = deployment.release.build_command(deployment.device, deployment.image, deployment.platform)
    return [] if is_own_image(deployment) else [command]
