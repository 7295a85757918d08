"""What the commands of `hfx deploy` share: their options, the deployment these stand for, and what they print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from hfx.cli.completion import model_names
from hfx.cli.output import Reporter

if TYPE_CHECKING:
    from hfx.deploy.deployment import Deployment
    from hfx.deploy.sizing import Sizing


@dataclass(frozen=True)
class DeployOptions:
    """Which models, for which machine, and where to."""

    names: Annotated[list[str], Argument(metavar="NAME...", help="Published models.", autocompletion=model_names)]
    output: Annotated[Path, Option(help="The folder to write; it must not exist, or be empty.")]
    repository: Annotated[Path, Option(help="The model repository.")] = Path("model_repository")
    device: Annotated[Literal["cpu", "gpu"], Option(help="What the models run on.")] = "cpu"
    triton: Annotated[str, Option(help="Tag of the Triton release; 26.07 without it.")] = ""
    name: Annotated[str, Option(help="The deployment's name; the first model's without it.")] = ""
    image: Annotated[str, Option(help="Image with Triton and hfx; hfx-triton:TAG-DEVICE without it.")] = ""
    cpus: Annotated[int | None, Option(help="Processors; the models' threads without it.")] = None
    drain: Annotated[int, Option(help="Seconds that requests under way get at the end.")] = 30
    force: Annotated[bool, Option("--force", help="Replace a folder that this command wrote before.")] = False

    def deployment(self, report: Reporter) -> Deployment:
        """The checked deployment; what is known against its release is reported."""
        from hfx.deploy.deployment import open_deployment
        from hfx.releases import MINIMUM_SECURE
        from hfx.repository import recover

        for done in recover(self.repository):
            report.note(done)
        deployment = open_deployment(
            self.repository,
            self.names,
            device=self.device,
            triton=self.triton or MINIMUM_SECURE,
            name=self.name,
            image=self.image,
            cpus=self.cpus,
            drain=self.drain,
        )
        for warning in deployment.warnings:
            report.warn(warning)
        return deployment


def print_written(
    report: Reporter,
    target: str,
    deployment: Deployment,
    output: Path,
    next_steps: Sequence[str],
    sizing: Sizing | None = None,
) -> None:
    """Print what was written, how large the deployment or each pod (`sizing`) is, and how to go on."""
    from hfx.deploy.deployment import mib
    from hfx.deploy.folder import folder_bytes, written_files

    files, size = written_files(output), folder_bytes(output)
    sized = sizing or deployment
    names = ("millicores", "memory", "replicas", "max_replicas") if sizing else ("cpus", "memory", "shared_memory")
    figures = {name: asdict(getattr(sized, name)) for name in names}
    value = {
        "target": target,
        "output": str(output),
        "name": deployment.name,
        "models": list(deployment.names),
        "device": deployment.device,
        "triton": deployment.release.tag,
        "bytes": size,
        "files": files,
        **figures,
    }
    lines = [f"Wrote {output}: {size / 1e6:.1f} MB ({', '.join(files)})."]
    if sizing is None:
        lines.append(f"  {deployment.cpus.value} processors, {mib(deployment.memory.value)} of memory (estimated)")
    else:
        lines.append(
            f"  {sizing.replicas.value} to {sizing.max_replicas.value} pods of {sizing.millicores.value}m processors"
            f" and {sizing.memory.value} MiB; README.md says where each number comes from."
        )
    report.result(value, [*lines, *next_steps])
