"""`hfx deploy kserve`: a ServingRuntime and an InferenceService."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from hfx.cli.commands import grouped
from hfx.cli.deploy.options import DeployOptions, print_written
from hfx.cli.deploy.scale_options import ScaleOptions
from hfx.cli.output import reporter

if TYPE_CHECKING:
    from hfx.deploy.kserve import Service


@dataclass(frozen=True)
class ServiceOptions:
    """Where the models come from, and how traffic is split."""

    storage_uri: Annotated[str, Option(help="Where the model folders are: s3://BUCKET/PATH, pvc://CLAIM/PATH, …")]
    namespace: Annotated[str, Option(help="The service's namespace.")] = "default"
    canary: Annotated[
        int | None, Option(help="Percent of requests for a new revision; runs on Knative, else on Deployments.")
    ] = None
    prometheus: Annotated[str, Option(help="Address of Prometheus, for KEDA.")] = (
        "http://prometheus-operated.monitoring.svc:9090"
    )

    def service(self) -> Service:
        """The checked values."""
        from hfx.deploy.kserve import Service

        return Service(self.storage_uri, self.namespace, self.canary, self.prometheus)


@grouped
def command(
    context: typer.Context, options: DeployOptions, scale: ScaleOptions, service_options: ServiceOptions
) -> None:
    """Write a serving runtime and an inference service for KServe.

    Examples:
      hfx deploy kserve sentiment --output manifests --storage-uri s3://models/reviews
      hfx deploy kserve stories --output manifests --storage-uri pvc://models --device gpu
    """
    from hfx.deploy import kserve

    report = reporter(context)
    service = service_options.service()
    deployment = options.deployment(report)
    sizing = scale.sizing(deployment)
    kserve.write(deployment, sizing, service, options.output, options.force)
    steps = [f"Next: {options.output / 'README.md'} says where the models go, and in which order to apply the files."]
    print_written(report, "kserve", deployment, options.output, steps, sizing)
