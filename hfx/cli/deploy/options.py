"""The options and output that the commands of all targets share, and the sizing of pods from measured loads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from typer import Argument

from hfx.cli.connection import DEFAULT_REPOSITORY, model_names
from hfx.cli.output import Reporter
from hfx.deploy.options import Arch
from hfx.errors import UsageError
from hfx.options import Option, option

if TYPE_CHECKING:
    from hfx.deploy.bundle import Packages
    from hfx.deploy.deployment import Deployment
    from hfx.deploy.options import Scale
    from hfx.deploy.sizing import Measured, Sizing
    from hfx.perf.results import Result, Run

LEAST_KEPT = 0.99  # the share of a load's requests that must have been answered (within the SLO, if there is one)
Loads = Annotated[
    list[Path] | None,
    Option(
        "--from", help="Result file of `hfx perf run`, to derive sizes and thresholds from. Repeatable.", metavar="FILE"
    ),
]


@dataclass(frozen=True)
class PackageOptions:
    """The options of the packages that models import."""

    offline: Path | None = option(None, "Take wheels from this folder instead of a package index.", metavar="DIR")
    python: str = option("", "Python version of Triton's stubs, such as 3.12. Default: the release's.")

    def packages(self, deployment: Deployment) -> Packages:
        """Return these options as hfx.deploy.bundle takes them."""
        from hfx.deploy import bundle

        return bundle.Packages(bundle.python_of(deployment, self.python), self.offline)


@dataclass(frozen=True)
class DeployOptions:
    """The options of a deployment: the models, the machine, and the output."""

    PANEL: ClassVar[str] = "Deployment"

    names: Annotated[
        list[str], Argument(metavar="NAME...", help="Published models to deploy.", autocompletion=model_names)
    ]
    output: Annotated[Path, Option(help="Folder to write. It must be empty or not exist.", metavar="DIR")]
    repository: Path = option(DEFAULT_REPOSITORY, "Model repository.", metavar="DIR")
    device: Literal["cpu", "gpu"] = option("cpu", "Device to run the models on.")
    arch: Arch | None = option(None, "Processor. Default: this machine's; sagemaker: that of --instance-type.")
    triton: str = option("", "Triton release. Default: 26.07.", metavar="TAG")
    name: str = option("", "Name of the deployment. Default: the first model's name.", metavar="NAME")
    image: str = option(
        "",
        "Image with Triton and hfx. Default: hfx-triton:TAG-DEVICE. kubernetes without --claim: image with "
        "the models, too. Default: NAME:TAG-DEVICE.",
        metavar="IMAGE",
    )
    cpus: int | None = option(None, "CPUs to request. Default: the threads that the models use.")
    drain: int = option(30, "Seconds that requests in flight get at shutdown.")
    force: bool = option(False, "Replace a folder written by an earlier run of this command.")

    def deployment(self, report: Reporter) -> Deployment:
        """Return the checked deployment; print warnings about its Triton release."""
        from hfx.deploy.deployment import open_deployment
        from hfx.releases import MINIMUM_SECURE
        from hfx.repository import recover

        for done in recover(self.repository):
            report.note(done)
        deployment = open_deployment(
            self.repository,
            self.names,
            device=self.device,
            arch=self.arch,
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
    """Print the written files, the size of the deployment or of a pod (`sizing`), and the next steps."""
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
        "arch": deployment.arch,
        "triton": deployment.release.tag,
        "bytes": size,
        "files": files,
        **figures,
    }
    written = f"{size / 1e6:.1f} MB ({', '.join(files)})" if size > 1e5 else ", ".join(files)
    lines = [f"Wrote {output} for {deployment.platform}: {written}."]
    if sizing is None:
        lines.append(f"  {deployment.cpus.value} processors, {mib(deployment.memory.value)} of memory (estimated)")
    else:
        lines.append(
            f"  {sizing.replicas.value} to {sizing.max_replicas.value} pods of {sizing.millicores.value}m processors"
            f" and {sizing.memory.value} MiB; README.md says where each number comes from."
        )
    report.result(value, [*lines, *next_steps])


# Sizes from measured loads


def sizing_of(deployment: Deployment, scale: Scale, loads: Iterable[Path]) -> Sizing:
    """Return the sizing of `deployment`. Raises UsageError, also for results that have none of its models."""
    from hfx.deploy.sizing import size

    return size(deployment, scale, measured(loads, deployment))


def measured(paths: Iterable[Path], deployment: Deployment) -> dict[str, Measured]:
    """Return model -> the highest throughput in the result files, of the loads that the model could answer.

    Raises UsageError for a file without such a load.
    """
    from hfx.perf.results import read_result

    best: dict[str, Measured] = {}
    for path in paths:
        result = read_result(path)
        runs = [run for run in result.runs if _counts(run, deployment)]
        if not runs:
            raise UsageError(
                f"{path} has no load of {', '.join(deployment.names)} on {deployment.device} that was answered to"
                f" {100 * LEAST_KEPT:g} %.",
                "Give a result of `hfx perf run NAME --output F.json` for a deployed model, with fewer callers.",
            )
        for run in runs:
            known = best.get(run.subject.model)
            if known is None or run.throughput > known.requests_per_second:
                best[run.subject.model] = _measured(path, result, run)
    return best


def _counts(run: Run, deployment: Deployment) -> bool:
    is_deployed = run.subject.model in deployment.names and run.subject.device in ("", deployment.device)
    return is_deployed and not run.interrupted and run.throughput > 0 and run.good_share >= LEAST_KEPT


def _measured(path: Path, result: Result, run: Run) -> Measured:
    from hfx.deploy.sizing import Measured

    cores, memory = (run.server.cores, run.server.memory) if run.server else (None, None)
    source = f"{path.name}: {run.load.label} on {result.machine.processor}, {result.created[:10]}"
    return Measured(run.subject.model, run.throughput, cores, memory, source)
