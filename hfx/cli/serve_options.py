"""The options of `hfx serve` for Triton, and for the public HTTP port with its access and its limits."""

from __future__ import annotations

import importlib.util
import os
import re
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hfx.errors import UsageError
from hfx.extras import install_command
from hfx.options import option
from hfx.python_backends.serving.traces import ENDPOINT_VARIABLE

if TYPE_CHECKING:
    from hfx.front.settings import Settings, Tls

Device = Literal["cpu", "gpu"]
CONTAINER = "Container (--with docker)"


@dataclass(frozen=True)
class ServeOptions:
    """The options of Triton, and of the models that it serves."""

    PANEL: ClassVar[str] = "Triton"

    method: Literal["embedded", "local", "docker"] = option(
        "embedded",
        "embedded: the tritonserver of the nvidia-pytriton wheel. local: the tritonserver on "
        "PATH. docker: a container.",
        "--with",
    )
    device: Device = option("cpu", "Device to run the models on.")
    host: str = option(
        "127.0.0.1", "Address to listen on. 127.0.0.1 accepts connections from this machine only.", metavar="ADDRESS"
    )
    http_port: int = option(8000, "HTTP port. 0 picks a free port.", metavar="PORT")
    grpc_port: int = option(8001, "gRPC port. 0 picks a free port.", metavar="PORT")
    metrics_port: int = option(8002, "Metrics port. 0 picks a free port.", metavar="PORT")
    steps: Literal["native", "python"] = option(
        "native",
        "Encoders. native: one C++ model, where the export has proven it. python: the published ensemble.",
    )
    models: str = option("", "Serve only these models.", metavar="A,B")
    timeout: float = option(300, "Time limit for loading the models.", metavar="SECONDS")
    drain: int = option(30, "Time that requests in flight get at shutdown.", min=0, max=3600, metavar="SECONDS")
    strict: bool = option(
        False,
        "Fail if any model fails to load. Default: serve those that load. Always on with "
        "--models and with --with docker.",
    )
    watch: bool = option(False, "Reload models when they are published again.")
    idle_unload: float = option(
        0,
        "Unload models without an HTTP request for this time; the next request loads them. 0: never.",
        envvar="HFX_IDLE_UNLOAD",
        min=0,
        metavar="SECONDS",
    )
    memory_budget: str = option(
        "",
        "Memory limit for loaded models, such as 2GB. The least recently used models are unloaded. Now and then a load "
        "ends Triton 24.10, which is started again.",
        envvar="HFX_MEMORY_BUDGET",
        metavar="SIZE",
    )
    triton: str = option("", "Triton release. Default: 26.07.", rich_help_panel=CONTAINER, metavar="TAG")
    image: str = option("", "Image to run; may include a digest.", rich_help_panel=CONTAINER, metavar="IMAGE")
    dry_run: bool = option(False, "Print the docker commands and exit.", rich_help_panel=CONTAINER)

    @property
    def names(self) -> list[str]:
        """The models to serve; an empty list means all."""
        return [name for name in self.models.split(",") if name]

    @property
    def is_strict(self) -> bool:
        """Whether either all models are served or none."""
        return self.strict or bool(self.names) or self.method == "docker"

    @property
    def tag(self) -> str:
        """The Triton release of a container."""
        from hfx.releases import MINIMUM_SECURE

        return self.triton or MINIMUM_SECURE

    def check(self) -> None:
        """Raise UsageError for options that can't be combined, and for invalid ports."""
        from hfx.triton.server import Ports, check_ports

        if self.method != "docker" and (self.triton or self.image or self.dry_run):
            raise UsageError(
                "--triton, --image and --dry-run are for containers.", "Add --with docker, or leave them out."
            )
        if self.method == "docker" and self.steps == "python":
            raise UsageError("A container serves encoders as they are published.", "Leave --steps out.")
        if self.method == "docker" and self.watch:
            raise UsageError("A container serves what was there at its start.", "Leave --watch out.")
        if self.method == "docker" and self.loads_on_demand:
            raise UsageError(
                "A container keeps its models loaded.", "Leave --idle-unload and --memory-budget out, or --with docker."
            )
        check_ports(Ports(self.http_port, self.grpc_port, self.metrics_port))
        _ = self.budget

    @property
    def loads_on_demand(self) -> bool:
        """Whether models are loaded on demand, so that some may be out of memory."""
        return bool(self.idle_unload or self.memory_budget)

    @property
    def budget(self) -> int:
        """The memory limit of loaded models in bytes; 0 means no limit. Raises UsageError for an invalid size."""
        return byte_size(self.memory_budget) if self.memory_budget else 0

    def of_front(self, settings: Settings) -> Settings:
        """Return `settings` of a front, changed so that it has models loaded on demand."""
        return replace(settings, unload_after=self.idle_unload, memory_budget=self.budget, load_seconds=self.timeout)

    def settings(self, grpc_host: str) -> dict[str, Any]:
        """Return the arguments of every kind of server behind a front; only this machine reaches HTTP and metrics."""
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


SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", re.IGNORECASE)


def byte_size(text: str) -> int:
    """Return the bytes of a size such as 2GB, 512MiB or 1.5G. Raises UsageError for an invalid size."""
    match = SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " ")) if match else 0
    if size <= 0:
        raise UsageError(f"{text!r} is not a size of memory.", "Give a number with its unit, such as 2GB or 512MiB.")
    return size


MIB = 1 << 20
ENDPOINT = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
HOST = re.compile(r"\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True)
class FrontOptions:
    """The options of the public HTTP port, and of gRPC if Triton has the same option."""

    PANEL: ClassVar[str] = "HTTP port"

    api_key_file: Path | None = option(
        None,
        "File of API keys: one KEY or LABEL:KEY per line. HTTP requests then need a key as a "
        "bearer token. gRPC requests never need one.",
        envvar="HFX_API_KEY_FILE",
        metavar="FILE",
        readable=False,
    )
    tls_cert: Path | None = option(
        None,
        "Certificate chain of the server (PEM), for HTTP and gRPC.",
        envvar="HFX_TLS_CERT",
        metavar="FILE",
        readable=False,  # `tls` checks it, with a better message
    )
    tls_key: Path | None = option(
        None, "Private key of the certificate (PEM).", envvar="HFX_TLS_KEY", metavar="FILE", readable=False
    )
    tls_client_ca: Path | None = option(
        None,
        "Require client certificates signed by one of these authorities (PEM).",
        envvar="HFX_TLS_CLIENT_CA",
        metavar="FILE",
        readable=False,
    )
    insecure: bool = option(
        False,
        "Allow other machines to connect without an API key or client certificate, also over gRPC.",
        envvar="HFX_INSECURE",
    )
    max_body: int = option(16, "Largest HTTP request body after decompression, in MiB.", min=1, metavar="MIB")
    max_connections: int = option(2048, "Most HTTP connections at a time.", min=1)
    max_requests: int = option(1024, "Most HTTP requests in progress at a time.", min=1)
    access_log: Literal["text", "json"] | None = option(
        None, "Log each HTTP request to stderr, as a line of text or of JSON."
    )
    otlp_endpoint: str = option(
        "",
        "OpenTelemetry collector that receives traces, such as http://127.0.0.1:4318.",
        envvar=ENDPOINT_VARIABLE,
        metavar="URL",
    )
    scrape_port: int = option(
        0,
        "Extra port that serves only /metrics and /health, without API key and TLS. 0: none.",
        min=0,
        max=65535,
        metavar="PORT",
    )
    no_playground: bool = option(False, "Do not serve the playground at /.", envvar="HFX_NO_PLAYGROUND")

    shadow: float = option(
        0, "Share of HTTP answers to compute again while idle, and compare.", min=0, max=1, metavar="SHARE"
    )
    shadow_repository: Path | None = option(
        None,
        "Repository of the models to compare with, such as fp32 exports. Default: the served models.",
        metavar="DIR",
    )

    allowed_hosts: tuple[str, ...] = option(
        (),
        "Host name that requests may use besides localhost. * allows any. Repeatable.",
        "--allowed-host",
        envvar="HFX_ALLOWED_HOST",
        metavar="NAME",
    )
    cors_origins: tuple[str, ...] = option(
        (),
        "Origin of web pages that may send requests. * allows any. Repeatable.",
        "--cors-origin",
        envvar="HFX_CORS_ORIGIN",
        metavar="ORIGIN",
    )

    def __post_init__(self) -> None:
        for name in self.allowed_hosts:
            if not HOST.fullmatch(name):
                raise UsageError(f"{name!r} is not the name of a host.", "Give it without http:// and without a port.")
        self._check_traces()
        for origin in self.cors_origins:
            if not ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"{origin!r} is not the origin of web pages.", "Give it as http://HOST:PORT, without a path."
                )

    def _check_traces(self) -> None:
        if self.otlp_endpoint and not ENDPOINT.fullmatch(self.otlp_endpoint):
            raise UsageError(
                f"{self.otlp_endpoint!r} is not the address of an OpenTelemetry collector.",
                "Give it as http://HOST:PORT, where the collector takes OTLP over HTTP (port 4318).",
            )
        if self.otlp_endpoint and not _has_exporter():
            raise UsageError(
                "Traces need opentelemetry-exporter-otlp-proto-http, which is not installed.",
                f"Run: {install_command('traces')}",
            )

    def _shadow(self, repository: Path, device: Device) -> dict[str, Any]:
        """Return the settings of the comparison: the share of answers, and the command of the process that compares.

        Raises UsageError, RepositoryError.
        """
        from hfx.repository import models

        if not self.shadow:
            if self.shadow_repository is not None:
                raise UsageError("--shadow-repository has no share of answers.", "Give one with --shadow.")
            return {}
        from hfx.front.shadow import shadow_command

        references = self.shadow_repository or repository
        served = {entry.name for entry in models(repository) if entry.manifest}
        if not any(entry.manifest and entry.name in served for entry in models(references)):
            raise UsageError(
                f"{references} has none of the models of {repository}.",
                f"Export them there: hfx export ... --precision fp32 --repository {references}",
            )
        command = shadow_command(str(repository.absolute()), str(references.absolute()), device)
        return {"shadow": self.shadow, "shadow_command": command}

    def settings(self, repository: Path, device: Device = "cpu") -> Settings:
        """Return the settings of a front of `repository`. Raises UsageError for files that can't be used."""
        from hfx.front.settings import Limits, Settings

        return Settings(
            limits=Limits(self.max_body * MIB, self.max_connections, self.max_requests),
            tls=self.tls,
            key_file=self.key_file,
            access_log=self.access_log or "",
            otlp_endpoint=self.otlp_endpoint,
            repository=str(repository.absolute()),
            playground=not self.no_playground,
            hosts=self.allowed_hosts,
            origins=self.cors_origins,
            **self._shadow(repository, device),
        )

    @property
    def tls(self) -> Tls | None:
        """The files for encrypted connections. Raises UsageError if they can't be used."""
        from hfx.front.file_changes import open_regular
        from hfx.front.settings import Tls

        if self.tls_cert is None and self.tls_key is None and self.tls_client_ca is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise UsageError("TLS needs a certificate and its key.", "Give both --tls-cert and --tls-key.")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            for file in (self.tls_cert, self.tls_key, *([self.tls_client_ca] if self.tls_client_ca else ())):
                open_regular(file).close()
            context.load_cert_chain(self.tls_cert, self.tls_key, password=lambda: "")
            if self.tls_client_ca is not None:
                context.load_verify_locations(self.tls_client_ca)
        except OSError as error:  # also ssl.SSLError
            files = f"{self.tls_cert}, {self.tls_key}" + (f", {self.tls_client_ca}" if self.tls_client_ca else "")
            raise UsageError(
                f"The TLS files {files} can't be used: {error}.",
                f"Give PEM files that this program's user ({os.getuid()}) can read: a certificate, and its plain key.",
            ) from None
        authorities = "" if self.tls_client_ca is None else str(self.tls_client_ca.absolute())
        return Tls(str(self.tls_cert.absolute()), str(self.tls_key.absolute()), authorities)

    @property
    def key_file(self) -> str:
        """The path of the file with the API keys; empty without one. Raises UsageError for a file without keys."""
        if self.api_key_file is None:
            return ""
        from hfx.front.keys import read_keys

        path = str(self.api_key_file.absolute())
        read_keys(path)
        return path

    def check_host(self, host: str, tls: Tls | None) -> None:
        """Raise UsageError if other machines could use HTTP at `host` without a key or a certificate."""
        from hfx.triton.server import is_loopback

        is_protected = self.insecure or self.api_key_file is not None or (tls is not None and tls.client_authorities)
        if not is_loopback(host) and not is_protected:
            raise UsageError(
                f"On {host}, everyone who can reach this port could use the models.",
                "Give --api-key-file (HFX_API_KEY_FILE), or --tls-client-ca with --tls-cert and --tls-key; --insecure "
                "(HFX_INSECURE=1) where you trust the network, as with a container's port published at 127.0.0.1 only.",
            )


def _has_exporter() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
