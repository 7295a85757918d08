"""Certificates for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """Write a self-signed certificate for 127.0.0.1 and its key; return their paths."""
    certificate, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*new, "-keyout", key, "-out", certificate, *subject], check=True, capture_output=True)
    return certificate, key
