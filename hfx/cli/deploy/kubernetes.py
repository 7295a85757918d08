"""`hfx deploy kubernetes` and `hfx deploy kserve`: manifests for a cluster."""

from __future__ import annotations

from dataclasses import replace

import typer

from hfx.cli.commands import grouped
from hfx.cli.deploy.options import DeployOptions, Loads, print_written, sizing_of
from hfx.cli.output import reporter
from hfx.deploy.options import Cluster, Scale, Service


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
