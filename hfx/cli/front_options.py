"""The options of `hfx serve` that are about its public HTTP port: who may use it, and its bounds."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from typer import Option

from hfx.errors import UsageError

if TYPE_CHECKING:
    from hfx.front.settings import Limits, Tls

MIB = 1 << 20
HOST = re.compile(r"\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True)
class FrontOptions:
    """The public HTTP port, and gRPC where Triton has the same."""

    PANEL: ClassVar[str] = "HTTP port"

    api_key_file: Annotated[
        Path | None,
        Option(
            envvar="HFX_API_KEY_FILE",
            help="File with an API key in each line; HTTP requests then need one as a bearer token.",
            metavar="FILE",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None,
        Option(envvar="HFX_TLS_CERT", help="The server's certificate chain (PEM), for HTTP and gRPC.", metavar="FILE"),
    ] = None
    tls_key: Annotated[Path | None, Option(envvar="HFX_TLS_KEY", help="Its private key (PEM).", metavar="FILE")] = None
    tls_client_ca: Annotated[
        Path | None,
        Option(
            "--tls-client-ca",
            envvar="HFX_TLS_CLIENT_CA",
            help="Ask clients for a certificate that one of these authorities signed.",
            metavar="FILE",
        ),
    ] = None
    insecure: Annotated[
        bool,
        Option(
            "--insecure",
            envvar="HFX_INSECURE",
            help="Listen beyond this machine without a key or client certificates.",
        ),
    ] = False
    max_body: Annotated[
        int, Option(help="Largest body of an HTTP request, decompressed, in MiB.", min=1, metavar="MIB")
    ] = 16
    max_connections: Annotated[int, Option(help="HTTP connections at a time.", min=1)] = 2048
    max_requests: Annotated[int, Option(help="HTTP requests in progress at a time.", min=1)] = 1024
    access_log: Annotated[bool, Option("--access-log", help="A line on stderr for each HTTP request.")] = False
    no_playground: Annotated[
        bool, Option("--no-playground", envvar="HFX_NO_PLAYGROUND", help="No page at / to try the models on.")
    ] = False

    allowed_host: Annotated[
        list[str] | None,
        Option(
            envvar="HFX_ALLOWED_HOST",
            help="Name of the server in requests, beside localhost; * takes any. May be given several times.",
            metavar="NAME",
        ),
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        Option(
            envvar="HFX_CORS_ORIGIN",
            help="Origin of web pages that may send requests; * takes any. May be given several times.",
            metavar="ORIGIN",
        ),
    ] = None

    @property
    def allowed_hosts(self) -> list[str]:
        """The names of the server. Raises UsageError for what is none."""
        for name in self.allowed_host or ():
            if not HOST.fullmatch(name):
                raise UsageError(f"{name!r} is not the name of a host.", "Give it without http:// and without a port.")
        return self.allowed_host or []

    @property
    def cors_origins(self) -> list[str]:
        """The origins of foreign web pages. Raises UsageError for what is none."""
        for origin in self.cors_origin or ():
            if not ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"{origin!r} is not the origin of web pages.", "Give it as http://HOST:PORT, without a path."
                )
        return self.cors_origin or []

    @property
    def limits(self) -> Limits:
        """The bounds of the front."""
        from hfx.front.settings import Limits

        return Limits(self.max_body * MIB, self.max_connections, self.max_requests)

    @property
    def tls(self) -> Tls | None:
        """The files of encrypted connections. Raises UsageError when they can't be used."""
        from hfx.front.settings import Tls

        if self.tls_cert is None and self.tls_key is None and self.tls_client_ca is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise UsageError("TLS needs a certificate and its key.", "Give both --tls-cert and --tls-key.")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key, password=lambda: "")
            if self.tls_client_ca is not None:
                context.load_verify_locations(self.tls_client_ca)
        except OSError as error:  # also ssl.SSLError
            files = f"{self.tls_cert}, {self.tls_key}" + (f", {self.tls_client_ca}" if self.tls_client_ca else "")
            raise UsageError(
                f"The TLS files {files} can't be used: {error}.", "Give PEM files: a certificate, and its plain key."
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
        """Raise UsageError when others than this machine could use HTTP at `host` without a key or a certificate."""
        from hfx.triton.server import is_loopback

        is_protected = self.insecure or self.api_key_file is not None or (tls is not None and tls.client_authorities)
        if not is_loopback(host) and not is_protected:
            raise UsageError(
                f"At {host} everyone who reaches this machine could use the models.",
                "Give --api-key-file (HFX_API_KEY_FILE), or --tls-client-ca with --tls-cert and --tls-key; --insecure "
                "(HFX_INSECURE=1) where you trust the network, as with a container's port published at 127.0.0.1 only.",
            )
