"""`hfx deploy bundle | docker | compose | kubernetes | kserve`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from hfx.cli.commands import grouped
from hfx.cli.deploy.options import DeployOptions, Loads, PackageOptions, print_written, sizing_of
from hfx.cli.output import reporter
from hfx.deploy.options import Cluster, Scale, Service
from hfx.options import Option


@grouped
def bundle(
    context: typer.Context,
    options: DeployOptions,
    sources: PackageOptions,
    no_numpy: Annotated[bool, Option("--no-numpy", help="Leave numpy out. NVIDIA's images include it.")] = False,
) -> None:
    """Write a model repository with all packages that its models import, for an unmodified Triton image.

    Examples:
      hfx deploy bundle sentiment stories --output bundle
      hfx deploy bundle sentiment --output bundle --offline wheels --python 3.12
    """
    from hfx.deploy import bundle

    report = reporter(context)
    deployment = options.deployment(report)
    packages = replace(sources.packages(deployment), with_numpy=not no_numpy)
    with report.progress("Fetching wheels"):
        written = bundle.write(deployment, options.output, packages, options.force)
    fetched = sum(wheel.size for wheel in written.wheels)
    steps = [
        f"  packages: {written.package_bytes / 1e6:.1f} MB unpacked, of {fetched / 1e6:.1f} MB of wheels",
        *(f"    {wheel.name}  {wheel.size / 1e6:.1f} MB" for wheel in written.wheels),
        f"Next: {options.output / 'README.md'} has the line that runs it in {deployment.release.image}.",
    ]
    print_written(report, "bundle", deployment, options.output, steps)


@grouped
def docker(context: typer.Context, options: DeployOptions) -> None:
    """Write a docker build context for an image with the models, and a script that runs it.

    Examples:
      hfx deploy docker sentiment --output image
      hfx deploy docker sentiment stories --output image --triton 26.07 --force
    """
    from hfx.deploy import docker

    report = reporter(context)
    deployment = options.deployment(report)
    docker.write(deployment, options.output, options.force)
    steps = [f"Next: {options.output / 'README.md'} has the lines that build the image; ./run.sh runs it."]
    print_written(report, "docker", deployment, options.output, steps)


@grouped
def compose(context: typer.Context, options: DeployOptions) -> None:
    """Write a folder for docker compose: the models, Prometheus with alerts, Grafana with a dashboard.

    Examples:
      hfx deploy compose sentiment --output compose
      hfx deploy compose sentiment stories --output compose --cpus 8
    """
    from hfx.deploy import compose

    report = reporter(context)
    deployment = options.deployment(report)
    compose.write(deployment, options.output, options.force)
    steps = [f"Next: docker compose --project-directory {options.output} up --build"]
    print_written(report, "compose", deployment, options.output, steps)


@grouped
def kubernetes(
    context: typer.Context, options: DeployOptions, *, load: Loads = None, scale: Scale, cluster: Cluster
) -> None:
    """Write manifests for Kubernetes: deployment, service, autoscaler, policies, and a job that verifies answers.

    Examples:
      hfx deploy kubernetes sentiment --output manifests --image registry.example/hfx:1
      hfx deploy kubernetes sentiment --output manifests --name reviews --cpus 8
    """
    from hfx.deploy import docker, kubernetes

    report = reporter(context)
    deployment = options.deployment(report)
    if not (options.image or cluster.claim):
        deployment = replace(deployment, image=docker.image(deployment))
    for line in cluster.warnings:
        report.warn(line)
    sizing = sizing_of(deployment, scale, load or ())
    kubernetes.write(deployment, sizing, cluster, options.output, options.force)
    steps = [f"Next: kubectl apply --filename {options.output / 'manifests'}"]
    print_written(report, "kubernetes", deployment, options.output, steps, sizing)


@grouped
def kserve(
    context: typer.Context, options: DeployOptions, *, load: Loads = None, scale: Scale, service: Service
) -> None:
    """Write a serving runtime and an inference service for KServe.

    Examples:
      hfx deploy kserve sentiment --output manifests --storage-uri s3://models/reviews
      hfx deploy kserve stories --output manifests --storage-uri pvc://models --device gpu
    """
    from hfx.deploy import kserve

    report = reporter(context)
    deployment = options.deployment(report)
    sizing = sizing_of(deployment, scale, load or ())
    kserve.write(deployment, sizing, service, options.output, options.force)
    steps = [f"Next: {options.output / 'README.md'} says where the models go, and in which order to apply the files."]
    print_written(report, "kserve", deployment, options.output, steps, sizing)
