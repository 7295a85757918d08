"""The target `docker`: an image of the models on top of hfx's image, and the lines that build and run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hfx.deploy.deployment import TEMPORARY_BYTES, Deployment
from hfx.deploy.folder import copy_models, output_folder, render, render_text

MODELS_FOLDER = "models"
STOP_MARGIN_SECONDS = 10  # beyond the drains, before the container is killed


def write(deployment: Deployment, output: Path, force: bool = False) -> None:
    """Write the folder: Dockerfile, run.sh, README.md and the models."""
    with output_folder(output, "docker", deployment, force) as folder:
        copy_models(deployment, folder / MODELS_FOLDER)
        render("docker", folder, values(deployment))
        (folder / "run.sh").chmod(0o755)


def write_dockerfile(folder: Path, template_values: dict[str, Any]) -> None:
    """Write the image's Dockerfile into the folder of another target that builds it."""
    text = render_text("docker/Dockerfile.j2", template_values)
    (folder / "Dockerfile").write_text(text, encoding="utf-8")


def values(deployment: Deployment) -> dict[str, Any]:
    """What the templates of container targets use."""
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
    """The image that the folder builds."""
    return f"{deployment.name}:{deployment.release.tag}-{deployment.device}"


def stop_seconds(drain: int) -> int:
    """How long `hfx serve --drain` takes at most from SIGTERM to its end: HTTP is drained first, and then gRPC."""
    return 2 * drain + STOP_MARGIN_SECONDS


def serve_command(deployment: Deployment, models: str = "/models") -> list[str]:
    """What runs in the container, with the folder `models`: front and supervisor around the image's tritonserver.

    It starts only with a key (HFX_API_KEY_FILE), client certificates, or HFX_INSECURE=1 where the network is trusted.
    """
    return [
        *("hfx", "serve", models, "--with", "local", "--device", deployment.device),
        *("--host", "0.0.0.0"),
        *("--http-port", str(deployment.ports.http), "--grpc-port", str(deployment.ports.grpc)),
        *("--drain", str(deployment.drain), "--strict"),
    ]


def is_own_image(deployment: Deployment) -> bool:
    """Whether the user named the image."""
    return deployment.image != deployment.release.hfx_image(deployment.device)


def base_lines(deployment: Deployment) -> list[list[str]]:
    """The lines that make the base image, in the root of a checkout of hfx; none where the image is the user's own."""
    command = deployment.release.build_command(deployment.device, deployment.image)
    return [] if is_own_image(deployment) else [command]
