"""The options of `hfx serve` that are about Triton: where it comes from, what it serves, and how it stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from typer import Option

from hfx.errors import UsageError

Device = Literal["cpu", "gpu"]
CONTAINER = "Container (--with docker)"


@dataclass(frozen=True)
class ServeOptions:
    """Triton and its models."""

    PANEL: ClassVar[str] = "Triton"

    method: Annotated[
        Literal["embedded", "local", "docker"],
        Option("--with", help="The tritonserver of the nvidia-pytriton wheel, the one on PATH, or a container."),
    ] = "embedded"
    device: Annotated[Device, Option(help="What the models run on.")] = "cpu"
    host: Annotated[str, Option(help="Address to listen at; 127.0.0.1 is this machine only.", metavar="ADDRESS")] = (
        "127.0.0.1"
    )
    http_port: Annotated[int, Option(help="Port of the HTTP API; 0 takes a free one.", metavar="PORT")] = 8000
    grpc_port: Annotated[int, Option(help="Port of the gRPC API; 0 takes a free one.", metavar="PORT")] = 8001
    metrics_port: Annotated[int, Option(help="Port of the metrics; 0 takes a free one.", metavar="PORT")] = 8002
    models: Annotated[str, Option(help="Serve only these: A,B.", metavar="A,B")] = ""
    timeout: Annotated[float, Option(help="Seconds that loading the models may take.", metavar="SECONDS")] = 300.0
    drain: Annotated[
        int, Option(help="Seconds that requests under way get when it stops.", min=0, max=3600, metavar="SECONDS")
    ] = 30
    strict: Annotated[
        bool, Option("--strict", help="Serve all models or none; else those that load, without --models.")
    ] = False
    watch: Annotated[bool, Option("--watch", help="Serve models that are published anew as soon as they are.")] = False
    triton: Annotated[
        str, Option(help="The Triton release; 26.07 without it.", rich_help_panel=CONTAINER, metavar="TAG")
    ] = ""
    image: Annotated[
        str, Option(help="The image, with a digest if you like.", rich_help_panel=CONTAINER, metavar="IMAGE")
    ] = ""
    dry_run: Annotated[bool, Option("--dry-run", help="Only print the docker commands.", rich_help_panel=CONTAINER)] = (
        False
    )

    @property
    def names(self) -> list[str]:
        """The models to serve; none stands for all."""
        return [name for name in self.models.split(",") if name]

    @property
    def is_strict(self) -> bool:
        """Whether all models are served or none."""
        return self.strict or bool(self.names) or self.method == "docker"

    @property
    def tag(self) -> str:
        """The Triton release of a container."""
        from hfx.releases import MINIMUM_SECURE

        return self.triton or MINIMUM_SECURE

    def check(self) -> None:
        """Raise UsageError for options that don't go together, and for ports that can't be."""
        from hfx.triton.server import Ports, check_ports

        if self.method != "docker" and (self.triton or self.image or self.dry_run):
            raise UsageError(
                "--triton, --image and --dry-run are about containers.", "Add --with docker, or leave them out."
            )
        if self.method == "docker" and self.watch:
            raise UsageError("A container serves what was there at its start.", "Leave --watch out.")
        check_ports(Ports(self.http_port, self.grpc_port, self.metrics_port))

    def settings(self, grpc_host: str) -> dict[str, Any]:
        """The arguments of every kind of server behind a front, whose HTTP and metrics only this machine reaches."""
        from hfx.triton.server import LOOPBACK

        return {
            "device": self.device,
            "host": grpc_host,
            "inner_host": LOOPBACK,
            "grpc_port": self.grpc_port,
            "metrics_port": self.metrics_port,
            "models": self.names,
            "timeout": self.timeout,
            "exit_timeout": self.drain,
        }
