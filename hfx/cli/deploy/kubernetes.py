"""`hfx deploy kubernetes`: manifests for a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from hfx.cli.commands import grouped
from hfx.cli.deploy.options import DeployOptions, print_written
from hfx.cli.deploy.scale_options import ScaleOptions
from hfx.cli.output import reporter

if TYPE_CHECKING:
    from hfx.deploy.kubernetes import Cluster


@dataclass(frozen=True)
class ClusterOptions:
    """What the manifests need to know of the cluster."""

    claim: Annotated[
        str, Option(help="PersistentVolumeClaim with the model repository; without it --image has the models.")
    ] = ""
    monitoring_namespace: Annotated[str, Option(help="Namespace of Prometheus.")] = "monitoring"
    allow_namespace: Annotated[
        list[str] | None, Option(help="Further namespaces that may send requests, such as the ingress controller's.")
    ] = None

    def cluster(self) -> Cluster:
        """The checked values."""
        from hfx.deploy.kubernetes import Cluster

        return Cluster(self.claim, self.monitoring_namespace, tuple(self.allow_namespace or ()))


@grouped
def command(
    context: typer.Context, options: DeployOptions, scale: ScaleOptions, cluster_options: ClusterOptions
) -> None:
    """Write manifests for Kubernetes: pods, service, autoscaler, policies, and a job that verifies the answers.

    Examples:
      hfx deploy kubernetes sentiment --output manifests --image registry.example/hfx:1
      hfx deploy kubernetes sentiment --output manifests --name reviews --cpus 8
    """
    from hfx.deploy import docker, kubernetes

    report = reporter(context)
    cluster = cluster_options.cluster()
    deployment = options.deployment(report)
    if not (options.image or cluster.claim):
        deployment = replace(deployment, image=docker.image(deployment))
    sizing = scale.sizing(deployment)
    kubernetes.write(deployment, sizing, cluster, options.output, options.force)
    steps = [f"Next: kubectl apply --filename {options.output / 'manifests'}"]
    print_written(report, "kubernetes", deployment, options.output, steps, sizing)
