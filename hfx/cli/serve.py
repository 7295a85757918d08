"""`hfx serve`: a model repository behind a real Triton server, until it is told to stop.

Checks the repository, starts the server, says where it listens, and starts it again when a part of it dies. How a
server runs is hfx.triton's.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hfx.cli.output import Reporter, reporter
from hfx.errors import ModelCorrupt, ServerError, UsageError

if TYPE_CHECKING:
    from hfx.triton import DockerServer, Server

WATCH_SECONDS = 0.2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RESTARTS = 5  # within RESTART_SECONDS: what dies more often has a reason that another start won't cure
RESTART_SECONDS = 60.0


class Way(StrEnum):
    """How Triton runs."""

    EMBEDDED = "embedded"
    DOCKER = "docker"


class Device(StrEnum):
    """Which configuration of the models is loaded."""

    CPU = "cpu"
    GPU = "gpu"


def command(
    context: typer.Context,
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", help="The model repository.")] = Path(
        "model_repository"
    ),
    way: Annotated[
        Way, typer.Option("--with", help="The server of the nvidia-pytriton wheel, or a container.")
    ] = Way.EMBEDDED,
    device: Annotated[Device, typer.Option(help="What the models run on.")] = Device.CPU,
    host: Annotated[str, typer.Option(help="Address to listen at; 127.0.0.1 is this machine only.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="Port of the HTTP API; 0 takes a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="Port of the gRPC API; 0 takes a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Port of the metrics; 0 takes a free one.")] = 8002,
    models: Annotated[str, typer.Option(help="Serve only these: A,B.")] = "",
    timeout: Annotated[float, typer.Option(help="Seconds that loading the models may take.")] = 300.0,
    triton: Annotated[str, typer.Option(help="Container: the Triton release, such as 24.10.")] = "",
    image: Annotated[str, typer.Option(help="Container: the image, with a digest if you like.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Container: only print the docker line.")] = False,
) -> None:
    """Serve a model repository with a real Triton server."""
    report = reporter(context)
    if way is Way.EMBEDDED and (triton or image or dry_run):
        raise UsageError(
            "--triton, --image and --dry-run are about containers.", "Add --with docker, or leave them out."
        )
    names = [name for name in models.split(",") if name]
    settings: dict[str, Any] = {
        "device": device.value,
        "host": host,
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "models": names,
        "timeout": timeout,
    }
    check_repository(repository, names, report)
    if dry_run:
        _print_line(_container(repository, triton, image, settings), report)
        return

    def build(progress: Callable[[str], None]) -> Server:
        if way is Way.EMBEDDED:
            from hfx.triton import EmbeddedServer

            return EmbeddedServer(repository, **settings, progress=progress)
        return _container(repository, triton, image, settings, progress)

    with _stop_signals():
        serve(build, report)


def _container(
    repository: Path,
    triton: str,
    image: str,
    settings: Mapping[str, Any],
    progress: Callable[[str], None] | None = None,
) -> DockerServer:
    from hfx.releases import DEFAULT_TAG
    from hfx.triton import DockerServer

    return DockerServer(repository, **settings, triton=triton or DEFAULT_TAG, image=image, progress=progress)


def check_repository(repository: Path, names: Sequence[str], report: Reporter) -> None:
    """Finish what a crashed export left, and compare every file of the models with its manifest.

    NAMES limits this to some models. Raises RepositoryError naming the files that are not as they were published.
    """
    from hfx.manifest import verify_files
    from hfx.repository import recover
    from hfx.repository.catalog import models

    for done in recover(repository):
        report.note(done)
    for entry in models(repository):
        if names and entry.name not in names:
            continue
        problems = [entry.problem] if entry.problem else []
        if entry.manifest:
            problems = [problem.message for problem in verify_files(entry.manifest, repository)]
        if problems:
            raise ModelCorrupt(
                f"The model {entry.name!r} is not as it was published:\n" + "\n".join(problems),
                "Export it again with --force, or serve the others with --models.",
            )


def serve(build: Callable[[Callable[[str], None]], Server], report: Reporter) -> None:
    """Start the server that BUILD makes, say so, and keep it running until a stop signal comes."""
    with report.progress("Starting Triton") as say:
        server = build(say)
        if server.exposure:
            report.warn(server.exposure)
        server.start()  # cleans up by itself when it fails or is interrupted
    try:
        _announce(server, report)
        _watch(server, report)
    except KeyboardInterrupt:
        report.note("Stopping.")
    finally:
        server.stop()


def _watch(server: Server, report: Reporter) -> None:
    """Restart SERVER whenever it has a fault; returns never, a stop signal ends it."""
    restarts: deque[float] = deque(maxlen=RESTARTS)
    while True:
        time.sleep(WATCH_SECONDS)
        fault = server.fault()
        if not fault:
            continue
        now = time.monotonic()
        if len(restarts) == RESTARTS and now - restarts[0] < RESTART_SECONDS:
            raise ServerError(
                f"Triton keeps dying: {fault}, after {RESTARTS} restarts within {RESTART_SECONDS:g} s.",
                "Is the memory of this machine enough? Serve fewer models with --models.",
            )
        restarts.append(now)
        report.warn(f"{fault}; starting Triton again.")
        server.restart()
        report.note(f"Ready again after {time.monotonic() - now:.1f} s.")


@contextmanager
def _stop_signals() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into KeyboardInterrupt, and let nothing disturb the stopping."""
    numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, frame: object) -> NoReturn:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(server: Server, report: Reporter) -> None:
    urls = {"http_url": server.http_url, "grpc_url": server.grpc_url, "metrics_url": server.metrics_url}
    names = _served(server)
    report.result(
        {"ready": True, **urls, "models": names},
        [
            "Ready. Ctrl-C stops.",
            f"  HTTP     {server.http_url}",
            f"  gRPC     {server.grpc_url}",
            f"  metrics  {server.metrics_url}",
            f"  models   {', '.join(names)}",
            f"Try: hfx infer {names[0] if names else 'NAME'} --url {server.grpc_url} 'some text'",
        ],
    )


def _served(server: Server) -> list[str]:
    from hfx.client import Client

    with Client(server.grpc_url) as client:
        return client.models()


def _print_line(server: DockerServer, report: Reporter) -> None:
    line = server.command()
    report.result({"command": line, "build": server.build_command()}, shlex.join(line))
