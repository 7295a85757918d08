"""`hfx serve`: a model repository behind a real Triton server, until it is stopped."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hfx.cli.commands import grouped
from hfx.cli.front_options import FrontOptions
from hfx.cli.output import Reporter, reporter
from hfx.errors import UsageError

if TYPE_CHECKING:
    from hfx.triton import DockerServer, Server
    from hfx.triton.front import Front


Device = Literal["cpu", "gpu"]


@grouped
def command(
    context: typer.Context,
    options: FrontOptions,
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", help="The model repository.")] = Path(
        "model_repository"
    ),
    method: Annotated[
        Literal["embedded", "docker"],
        typer.Option("--with", help="The server of the nvidia-pytriton wheel, or a container."),
    ] = "embedded",
    device: Annotated[Device, typer.Option(help="What the models run on.")] = "cpu",
    host: Annotated[str, typer.Option(help="Address to listen at; 127.0.0.1 is this machine only.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="Port of the HTTP API; 0 takes a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="Port of the gRPC API; 0 takes a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Port of the metrics; 0 takes a free one.")] = 8002,
    models: Annotated[str, typer.Option(help="Serve only these: A,B.")] = "",
    timeout: Annotated[float, typer.Option(help="Seconds that loading the models may take.")] = 300.0,
    drain: Annotated[
        int, typer.Option(help="Seconds that requests under way get when it is told to stop.", min=0, max=3600)
    ] = 30,
    strict: Annotated[
        bool, typer.Option("--strict", help="Serve all models or none; else those that load, without --models.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve models that are published anew as soon as they are.")
    ] = False,
    triton: Annotated[str, typer.Option(help="Container: the Triton release; 26.07 without it.")] = "",
    image: Annotated[str, typer.Option(help="Container: the image, with a digest if you like.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Container: only print the docker lines.")] = False,
) -> None:
    """Serve a model repository with a real Triton server."""
    from hfx.releases import MINIMUM_SECURE, security_warning
    from hfx.triton import DockerServer, EmbeddedServer
    from hfx.triton.front import Front
    from hfx.triton.models import check_published, check_release, damaged_models
    from hfx.triton.server import LOOPBACK, Ports, address, check_ports, is_loopback

    report = reporter(context)
    if method == "embedded" and (triton or image or dry_run):
        raise UsageError(
            "--triton, --image and --dry-run are about containers.", "Add --with docker, or leave them out."
        )
    if method == "docker" and watch:
        raise UsageError("A container serves what was there at its start.", "Leave --watch out.")
    names = [name for name in models.split(",") if name]
    is_strict = strict or bool(names) or method == "docker"
    damaged = [] if is_strict else damaged_models(repository, report.warn)
    if is_strict:
        check_published(repository, names, report.note)
    tag = triton or MINIMUM_SECURE
    if method == "docker" and not image:
        check_release(repository, names, tag)
        if warning := security_warning(tag):
            report.warn(warning)
    check_ports(Ports(http_port, grpc_port, metrics_port))
    host, tls, key_file = address(host), options.tls, options.key_file
    options.check_host(host, tls)
    if key_file and not tls and not is_loopback(host):
        report.warn("API keys travel in plain text here: give --tls-cert and --tls-key.")
    is_grpc_open = options.insecure or (method == "embedded" and tls is not None and tls.client_authorities)
    if not is_loopback(host) and not is_grpc_open:
        report.warn("gRPC listens at 127.0.0.1 only: Triton knows no API keys. Use HTTP, or --tls-client-ca.")
    settings: dict[str, Any] = {
        "device": device,
        "host": host if is_grpc_open else LOOPBACK,
        "inner_host": LOOPBACK,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "models": names,
        "timeout": timeout,
        "exit_timeout": drain,
    }
    if dry_run:
        plain = settings | {"host": host, "inner_host": host, "http_port": http_port}
        _print_lines(DockerServer(repository, **plain, triton=tag, image=image), report)
        return
    server: Server
    if method == "embedded":
        server = EmbeddedServer(
            repository, **settings, private=True, grpc_tls=tls, strict=is_strict, without=damaged, warn=report.warn
        )
    else:
        server = DockerServer(repository, **settings, triton=tag, image=image)
    front = Front(
        host,
        http_port,
        limits=options.limits,
        key_file=key_file,
        tls=tls,
        access_log=options.access_log,
        repository=str(repository.absolute()),
        report=report.warn,
    )
    _serve(server, front, report, watch)


def _serve(server: Server, front: Front, report: Reporter, watch: bool) -> None:
    """Start `server` behind `front`, say so, and keep it serving until a stop signal comes."""
    from hfx.triton import EmbeddedServer, StopSignals, supervisor
    from hfx.triton.commands import Commands

    def kill() -> None:
        front.kill()
        server.kill()

    with StopSignals() as signals:
        signals.at_once = kill
        with report.progress("Starting Triton") as server.progress:
            if server.exposure:
                report.warn(server.exposure)
            server.start()  # cleans up by itself when it fails or is interrupted
        try:
            front.start(server.http_url, server.metrics_url)
            if isinstance(server, EmbeddedServer):
                commands = Commands(server, report.note)
                if watch:
                    commands.watch()
            _announce(server, front, report)
            supervisor.keep_serving(server, report.warn)
        except KeyboardInterrupt:
            supervisor.stop(server, front, report.note)
        finally:
            front.kill()
            server.stop()


def _announce(server: Server, front: Front, report: Reporter) -> None:
    from hfx.triton.server import entry_points

    urls = {"http_url": front.url, "grpc_url": server.grpc_url, "metrics_url": server.metrics_url}
    names = entry_points(server.http_url)
    report.result(
        {"ready": True, **urls, "models": names},
        [
            "Ready. Ctrl-C stops.",
            f"  HTTP     {front.url}",
            f"  gRPC     {server.grpc_url}",
            f"  metrics  {server.metrics_url}",
            f"  models   {', '.join(names)}",
            f"Try: hfx infer {names[0] if names else 'NAME'} --url {server.grpc_url} 'some text'",
        ],
    )


def _print_lines(server: DockerServer, report: Reporter) -> None:
    image, run = server.image_command(), server.command()
    if image[-1] == "." and not Path("docker", "Dockerfile").is_file():
        report.warn("Run docker build in the root of a checkout of hfx, where docker/Dockerfile is.")
    report.result({"command": run, "image": image}, [shlex.join(image), shlex.join(run)])
