"""`hfx serve`: serve a model repository with Triton, until it is stopped."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hfx.cli.batch_api_options import BatchOptions
from hfx.cli.commands import grouped
from hfx.cli.connection import DEFAULT_URL, RepositoryArgument, RepositoryOption, chosen_repository
from hfx.cli.output import Reporter, reporter
from hfx.cli.serve_options import FrontOptions, ServeOptions
from hfx.names import Kind
from hfx.python_backends.serving.traces import ENDPOINT_VARIABLE
from hfx.tasks import TASKS
from hfx.tasks.kinds import KIND

if TYPE_CHECKING:
    from hfx.batch.api.process import BatchProcess
    from hfx.front.settings import Settings, Tls
    from hfx.triton import DockerServer, Server
    from hfx.triton.front import Front


@grouped
def command(
    context: typer.Context,
    options: ServeOptions,
    front_options: FrontOptions,
    batch_options: BatchOptions,
    place: RepositoryArgument = None,
    repository: RepositoryOption = None,
) -> None:
    """Serve a model repository with Triton.

    Examples:
      hfx serve
      hfx serve /srv/models --models sentiment,faq --http-port 9000
      hfx serve --with docker --dry-run
    """
    from hfx.releases import BODY_BOUNDED
    from hfx.repository import recover
    from hfx.triton import DockerServer
    from hfx.triton.arguments import body_arguments, trace_arguments
    from hfx.triton.front import Front
    from hfx.triton.server import address

    report, repository = reporter(context), chosen_repository(place, repository)
    options.check()
    host, settings = address(options.host), front_options.settings(repository, options.device)
    front_options.check_host(host, settings.tls)
    for done in recover(repository):
        report.note(done)
    _check_device(repository, options, report)
    grpc_host = _grpc_host(host, options, settings, front_options.insecure, report)
    release = _check_release(repository, options, grpc_host, report)
    arguments = body_arguments(settings.limits.body, release >= BODY_BOUNDED)
    arguments += trace_arguments(settings.otlp_endpoint)
    if settings.otlp_endpoint:
        os.environ[ENDPOINT_VARIABLE] = settings.otlp_endpoint  # generators send their spans themselves
    if options.dry_run:
        container = options.settings(host) | {"inner_host": host, "http_port": options.http_port, "options": arguments}
        _print_lines(DockerServer(repository, **container, triton=options.tag, image=options.image), report)
        return
    server = _server(repository, options, grpc_host, settings.tls, arguments, report)
    settings = options.of_front(settings)
    batches = batch_options.process(settings.limits.body, report.warn)
    if batches is not None:
        settings = batch_options.of_front(settings, batches)
    front = Front(host, options.http_port, settings, front_options.scrape_port, report.warn)
    _serve(server, front, batches, report, options)


def _check_models(repository: Path, options: ServeOptions, report: Reporter) -> list[str]:
    """Return the models to leave out because their files have changed; raises ModelCorrupt if all must be served."""
    from hfx.triton.models import check_published, damaged_models

    if not options.is_strict:
        return damaged_models(repository, report.warn)
    check_published(repository, options.names, report.note)
    return []


def _check_device(repository: Path, options: ServeOptions, report: Reporter) -> None:
    """Warn about models that run on the other device, because they were not exported for the chosen one."""
    from hfx.repository import models

    for entry in models(repository):
        chosen = not options.names or entry.name in options.names
        if chosen and entry.manifest and getattr(entry.manifest.precision, options.device) is None:
            other = "CPU" if options.device == "gpu" else "GPU"
            report.warn(
                f"{entry.name} is served on the {other}: it was not built for {options.device}. Export it again."
            )


def _check_release(repository: Path, options: ServeOptions, grpc_host: str, report: Reporter) -> str:
    """Return the release of Triton, empty if unknown, and warn about a release with known vulnerabilities.

    Raises UsageError if a model needs a later release.
    """
    from hfx.releases import security_warning
    from hfx.triton.installation import find_on_path
    from hfx.triton.models import check_release
    from hfx.triton.server import is_loopback

    release, risk = "", ""
    if options.method == "docker" and not options.image:
        release, risk = options.tag, security_warning(options.tag)
    elif options.method == "local":
        installation = find_on_path()
        release = installation.release
        risk = installation.risk if is_loopback(grpc_host) else ""  # otherwise, the server's `exposure` has the warning
    if release:
        check_release(repository, options.names, release)
    if risk:
        report.warn(risk)
    return release


def _grpc_host(host: str, options: ServeOptions, front: Settings, insecure: bool, report: Reporter) -> str:
    """Return the address of gRPC beside HTTP at `host`; warn about unencrypted API keys, and gRPC at 127.0.0.1."""
    from hfx.triton.server import LOOPBACK, is_loopback

    asks_certificates = front.tls is not None and front.tls.client_authorities and options.method != "docker"
    is_open = insecure or asks_certificates
    if not is_loopback(host):
        if front.key_file and not front.tls:
            report.warn("API keys travel in plain text here: give --tls-cert and --tls-key.")
        if not is_open:
            report.warn(
                "gRPC listens on 127.0.0.1 only, because Triton does not check API keys. Use HTTP, or --tls-client-ca."
            )
    return host if is_open else LOOPBACK


def _server(
    repository: Path,
    options: ServeOptions,
    grpc_host: str,
    tls: Tls | None,
    arguments: list[str],
    report: Reporter,
) -> Server:
    """Return the server for `options`, with further `arguments`; a container serves the repository's own files."""
    from hfx.triton import DockerServer, TritonProcess
    from hfx.triton.installation import find_on_path, find_wheel
    from hfx.triton.models import read_settled, select_models

    settings = options.settings(grpc_host)
    check = partial(_check_models, repository, options, report)
    if options.method == "docker":
        folders = [repository / name for name in select_models(repository, options.names)]
        read_settled(check, lambda: folders)
        return DockerServer(repository, **settings, triton=options.tag, image=options.image, options=arguments)
    return TritonProcess(
        repository,
        **settings,
        private=True,
        steps=options.steps,
        budget=options.budget,
        options=arguments,
        grpc_tls=tls,
        strict=options.is_strict,
        check=check,
        warn=report.warn,
        find=find_on_path if options.method == "local" else find_wheel,
    )


def _serve(server: Server, front: Front, batches: BatchProcess | None, report: Reporter, options: ServeOptions) -> None:
    """Start `server` behind `front`, and `batches`; report the start, and serve until a stop signal comes."""
    from hfx.triton import StopSignals, supervisor
    from hfx.triton.commands import Commands

    def kill() -> None:
        front.kill()
        server.kill()

    with StopSignals() as signals:
        signals.at_once = kill
        front.prepare()
        with report.progress("Starting Triton") as server.progress:
            if server.exposure:
                report.warn(server.exposure)
            server.start()  # cleans up itself if it fails or is interrupted
        try:
            commands = None if server.replaceable is None else Commands(server.replaceable, report.note)
            on_demand = str(commands.path) if commands and options.loads_on_demand else ""
            front.start(server.http_url, server.metrics_url, on_demand)
            if batches is not None:
                batches.start()
            if commands and options.watch:
                commands.watch()
            _announce(server, front, report)
            if on_demand:
                report.note(
                    "Over gRPC only loaded models answer (else NOT_FOUND): requests over HTTP load and keep them."
                )
            supervisor.keep_serving(server, report.warn, front.report_state)
        except KeyboardInterrupt:
            if batches is not None:
                batches.stop()
            supervisor.stop(server, front, report.note)
        finally:
            front.kill()
            server.stop()


def _announce(server: Server, front: Front, report: Reporter) -> None:
    from hfx.triton.loaded_models import entry_points

    urls = {"http_url": front.url, "grpc_url": server.grpc_url, "metrics_url": server.metrics_url}
    names = server.replaceable.served() if server.replaceable else entry_points(server.http_url)
    report.result(
        {"ready": True, **urls, "models": names},
        [
            "Ready. Ctrl-C stops." if sys.stdin.isatty() else "Ready.",
            f"  HTTP     {front.url}" + ("  (in a browser: the playground)" if front.has_playground else ""),
            f"  gRPC     {server.grpc_url}",
            f"  metrics  {server.metrics_url}",
            f"  models   {', '.join(names)}",
            *([f"Try: {example(server.repository, names[0], server.grpc_url)}"] if names else []),
        ],
    )


def example(repository: Path, name: str, url: str) -> str:
    """Return a command that queries the model NAME, with the arguments of its task."""
    from hfx.repository import models

    manifest = next((entry.manifest for entry in models(repository) if entry.name == name), None)
    arguments = TASKS[manifest.task].example if manifest else "'some text'"
    if manifest and manifest.choices.get(KIND) == Kind.SPANS:
        arguments += " --labels person,place"
    server = "" if url == DEFAULT_URL else f" --url {url}"
    return f"hfx infer {name}{server} {arguments}"


def _print_lines(server: DockerServer, report: Reporter) -> None:
    image, run = server.image_command(), server.command()
    if image[-1] == "." and not Path("docker", "Dockerfile").is_file():
        report.warn("Run docker build in the root of a checkout of hfx, where docker/Dockerfile is.")
    report.result({"command": run, "image": image}, [shlex.join(image), shlex.join(run)])
