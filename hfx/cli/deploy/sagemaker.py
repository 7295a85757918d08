"""`hfx deploy sagemaker`: an endpoint of Amazon SageMaker, written, tried on this machine, made and deleted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from hfx.cli.commands import grouped
from hfx.cli.deploy.options import DeployOptions, print_written
from hfx.cli.output import Reporter, reporter

if TYPE_CHECKING:
    from hfx.deploy.bundle import Packages
    from hfx.deploy.deployment import Deployment
    from hfx.deploy.sagemaker.endpoint import Settings


@dataclass(frozen=True)
class EndpointOptions:
    """What the endpoint is."""

    role: Annotated[str, Option(help="ARN of the execution role; role-trust.json and policy.json describe it.")] = ""
    region: Annotated[str, Option(help="Where AWS's own Triton image is taken from; that of --image without it.")] = ""
    bucket: Annotated[
        str, Option(help="s3://BUCKET/PREFIX of archives and answers; s3://sagemaker-REGION-ACCOUNT/NAME without it.")
    ] = ""
    instance_type: Annotated[str, Option(help="Such as ml.c7i.xlarge.")] = ""
    instances: Annotated[int, Option(help="Number of instances; the fewest with autoscaling.")] = 1
    budget: Annotated[float | None, Option(help="What the instances may cost an hour: the cheapest type is taken.")] = (
        None
    )
    prices: Annotated[Path | None, Option(help="Price file of the region (JSON); hfx has no prices of its own.")] = None
    serverless: Annotated[bool, Option("--serverless", help="A serverless endpoint.")] = False
    memory_mb: Annotated[int | None, Option(help="Of a serverless endpoint; what the model needs without it.")] = None
    concurrency: Annotated[int, Option(help="Requests at once that a serverless endpoint takes.")] = 5
    asynchronous: Annotated[bool, Option("--async", help="An asynchronous endpoint: requests, answers in S3.")] = False
    stream: Annotated[bool, Option("--stream", help="A generator answers token by token.")] = False
    capture: Annotated[int | None, Option(help="Percent of requests and answers that are kept in S3.")] = None
    subnet: Annotated[list[str] | None, Option(help="Subnet of the VPC to run in; repeatable.")] = None
    security_group: Annotated[list[str] | None, Option(help="Security group in the VPC; repeatable.")] = None
    max_instances: Annotated[int | None, Option(help="Scale automatically up to so many instances.")] = None
    scale_target: Annotated[
        float | None,
        Option(help="Load of an instance to hold: requests a minute; generators: at once; --async: waiting."),
    ] = None
    ami: Annotated[str, Option(help="Image of GPU instances (InferenceAmiVersion); that of CUDA 13 without it.")] = ""

    def settings(self) -> Settings:
        """The same as the value that hfx.deploy checks."""
        from hfx.deploy.sagemaker.endpoint import Settings

        values = asdict(self)
        subnets, groups = tuple(values.pop("subnet") or ()), tuple(values.pop("security_group") or ())
        return Settings(**values, subnets=subnets, security_groups=groups)


@dataclass(frozen=True)
class PackageOptions:
    """Which packages the archive holds."""

    offline: Annotated[Path | None, Option(help="Take the wheels from this folder, not from a package index.")] = None
    no_openvino: Annotated[
        bool, Option("--no-openvino", help="Leave OpenVINO out: generators run on ONNX Runtime.")
    ] = False
    python: Annotated[str, Option(help="Python of the stubs, such as 3.12; the release's without it.")] = ""

    def packages(self, deployment: Deployment) -> Packages:
        """The same as the value that hfx.deploy.bundle takes."""
        from hfx.deploy import bundle

        return bundle.Packages(bundle.python_of(deployment, self.python), self.offline, not self.no_openvino)


@dataclass(frozen=True)
class ActionOptions:
    """What is done with the folder."""

    local: Annotated[
        bool, Option("--local", help="Serve the archive here with the container's arguments, until Ctrl-C.")
    ] = False
    port: Annotated[int, Option(help="Port of 127.0.0.1 for --local.")] = 8080
    apply: Annotated[bool, Option("--apply", help="Upload, and make or update the endpoint (needs boto3).")] = False
    wait: Annotated[bool, Option("--wait", help="Wait until it is in service; then start autoscaling.")] = False
    delete: Annotated[bool, Option("--delete", help="Delete endpoint, configuration and model; nothing else.")] = False

    @property
    def acts(self) -> bool:
        """Whether an existing folder is used as it is."""
        return self.local or self.apply or self.wait or self.delete


@grouped
def command(
    context: typer.Context,
    options: DeployOptions,
    endpoint: EndpointOptions,
    packages: PackageOptions,
    actions: ActionOptions,
) -> None:
    """Write an endpoint of SageMaker: archive, API calls, role; try it with --local, make it with --apply.

    A folder that exists is used as it is by --local, --apply, --wait and --delete; --force writes it anew.

    Examples:
      hfx deploy sagemaker sentiment --output endpoint
      hfx deploy sagemaker sentiment --output endpoint --local
    """
    report = reporter(context)
    written = (options.output / "create-model.json").is_file() and not options.force
    if actions.delete:
        return _delete(report, options.output)
    if not (written and actions.acts):
        _write(report, options, endpoint, packages)
    if actions.apply or actions.wait:
        _apply(report, options.output, actions)
    if actions.local:
        _serve(report, options.output, actions.port)


def _write(report: Reporter, options: DeployOptions, endpoint: EndpointOptions, packages: PackageOptions) -> None:
    from hfx.deploy.sagemaker import target
    from hfx.deploy.sagemaker.container import tag_of
    from hfx.deploy.sagemaker.endpoint import open_endpoint

    chosen = replace(options, triton=options.triton or tag_of(options.image))
    deployment = chosen.deployment(report)
    checked = open_endpoint(deployment, options.image, endpoint.settings())
    with report.progress("Fetching wheels, packing"):
        target.write(deployment, checked, options.output, packages.packages(deployment), options.force)
    steps = [line for line in (target.cost(checked),) if line]
    steps.append(f"Next: {options.output / 'README.md'} has the lines that make the endpoint; --apply runs them.")
    print_written(report, "sagemaker", deployment, options.output, steps)


def _apply(report: Reporter, folder: Path, actions: ActionOptions) -> None:
    from hfx.deploy.sagemaker import apply

    if actions.apply:
        apply.apply(folder, report.note)
    if actions.wait:
        with report.progress("Waiting until the endpoint is in service"):
            apply.wait(folder)
        apply.scale(folder, report.note)


def _delete(report: Reporter, folder: Path) -> None:
    from hfx.deploy.sagemaker import apply

    deleted: list[str] = []
    apply.delete(folder, deleted.append)
    report.result({"deleted": deleted}, deleted)


def _serve(report: Reporter, folder: Path, port: int) -> None:
    from hfx.deploy.sagemaker.local import serving

    with serving(folder, port) as running:
        report.note(f"http://127.0.0.1:{port}/invocations answers; Ctrl-C ends it.")
        try:
            running.wait()
        except KeyboardInterrupt:
            return
