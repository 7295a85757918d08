"""`hfx deploy sagemaker`: write an endpoint of Amazon SageMaker, try it on this machine, create and delete it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import typer

from hfx.cli.commands import grouped
from hfx.cli.deploy.options import DeployOptions, PackageOptions, print_written
from hfx.cli.output import Reporter, reporter
from hfx.deploy.options import EndpointOptions
from hfx.options import option


@dataclass(frozen=True)
class ActionOptions:
    """The options for actions on the folder."""

    local: bool = option(False, "Serve the archive on this machine as the container would, until Ctrl-C.")
    port: int = option(8080, "Port for --local, on 127.0.0.1.")
    apply: bool = option(False, "Upload the archive, and create or update the endpoint. Needs boto3.")
    wait: bool = option(False, "Wait until the endpoint is in service, then start autoscaling.")
    delete: bool = option(False, "Delete the endpoint, its configuration and its model; nothing else.")

    @property
    def acts(self) -> bool:
        """Whether an action uses an existing folder as it is."""
        return self.local or self.apply or self.wait or self.delete


@grouped
def command(
    context: typer.Context,
    options: DeployOptions,
    endpoint: EndpointOptions,
    packages: PackageOptions,
    actions: ActionOptions,
) -> None:
    """Write a SageMaker endpoint: archive, API calls and role. --local tries it, --apply creates it.

    --local, --apply, --wait and --delete use an existing folder as it is. --force rewrites it.

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
    from hfx.deploy.sagemaker.aws import arch_of, tag_of
    from hfx.deploy.sagemaker.endpoint import open_endpoint

    arch = options.arch or arch_of(endpoint.instance_type)
    chosen = replace(options, arch=arch, triton=options.triton or tag_of(options.image))
    deployment = chosen.deployment(report)
    checked = open_endpoint(deployment, options.image, endpoint)
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
        report.note(f"http://127.0.0.1:{port}/invocations is ready; Ctrl-C stops it.")
        try:
            running.wait()
        except KeyboardInterrupt:
            return
