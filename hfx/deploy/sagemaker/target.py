"""The target `sagemaker`: archives, the bodies of the API calls, the role, and a README with the commands."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

from hfx.deploy import bundle
from hfx.deploy.deployment import Deployment
from hfx.deploy.folder import output_folder, render
from hfx.deploy.sagemaker.aws import CALL_LIMITS, SERVERLESS_START_SECONDS
from hfx.deploy.sagemaker.endpoint import Endpoint
from hfx.deploy.sagemaker.requests import CALLS, Upload, bodies, policy, trust
from hfx.manifest import hash_file

VERSION_DIGITS = 10
HOURS_A_MONTH = 730


def write(deployment: Deployment, endpoint: Endpoint, output: Path, packages: bundle.Packages, force: bool) -> None:
    """Write the folder. Raises the errors of bundle.write and output_folder."""
    with output_folder(output, "sagemaker", deployment, force) as folder:
        uploads = tuple(_archived(endpoint, index, folder, packages) for index in range(len(endpoint.deployments)))
        unversioned = json.dumps(bodies(endpoint, "", uploads), sort_keys=True).encode()
        version = hashlib.sha256(unversioned).hexdigest()[:VERSION_DIGITS]
        made = bodies(endpoint, version, uploads)
        documents = made | {"role-trust.json": trust(endpoint), "policy.json": policy(endpoint, uploads)}
        for name, body in documents.items():
            (folder / name).write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        render("sagemaker", folder, values(endpoint, uploads, made))


def _archived(endpoint: Endpoint, index: int, folder: Path, packages: bundle.Packages) -> Upload:
    """Bundle one model into an archive. Its key in S3 contains its hash, so that no upload replaces another archive."""
    deployment, unpacked = endpoint.deployments[index], folder / "bundle"
    bundle.write(deployment, unpacked, packages)
    target = folder / ("model.tar.gz" if len(endpoint.deployments) == 1 else f"{deployment.name}.tar.gz")
    write_archive(unpacked, target)
    shutil.rmtree(unpacked)
    entry = hash_file(target)
    return Upload(target.name, f"{endpoint.bucket}/models/{entry.sha256[:16]}/{target.name}", entry.size)


def values(endpoint: Endpoint, uploads: tuple[Upload, ...], made: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the values for the README's template. Commands are lists of words."""
    return {
        "endpoint": endpoint,
        "uploads": uploads,
        "role_name": endpoint.settings.role.rpartition("/")[2],
        "uploading": [["aws", "s3", "cp", upload.file, upload.uri] for upload in uploads],
        "calls": [_line(call.service, call.operation, call.file, endpoint) for call in CALLS if call.file in made],
        "invocations": _invocations(endpoint),
        "limits": CALL_LIMITS[endpoint.mode],
        "start_seconds": SERVERLESS_START_SECONDS,
        "cost": cost(endpoint),
    }


def cost(endpoint: Endpoint) -> str:
    """Return a line with the cost of the endpoint according to the price file; empty without a price file."""
    if (price := endpoint.price) is None:
        return ""
    count = endpoint.settings.instances
    hourly = price.hourly * count
    return (
        f"{count} x {price.instance_type}: {hourly:.4g} {price.currency} an hour, "
        f"{hourly * HOURS_A_MONTH:.4g} in {HOURS_A_MONTH} hours ({price.source})"
    )


def _line(service: str, operation: str, file: str, endpoint: Endpoint) -> list[str]:
    verb = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in operation).lstrip("-")
    return ["aws", service, verb, "--region", endpoint.region, "--cli-input-json", f"file://{file}"]


def _invocations(endpoint: Endpoint) -> list[list[str]]:
    """Return the commands that send request.json to each model."""
    common = ["--region", endpoint.region, "--endpoint-name", endpoint.name, "--content-type", "application/json"]
    if endpoint.settings.asynchronous:
        place = f"{endpoint.bucket}/requests/request.json"
        uploading = ["aws", "s3", "cp", "request.json", place]
        return [uploading, ["aws", "sagemaker-runtime", "invoke-endpoint-async", *common, "--input-location", place]]
    hosts = endpoint.hostnames if len(endpoint.deployments) > 1 else []
    targets = [["--target-container-hostname", host] for host in hosts] or [[]]
    calling = ["aws", "sagemaker-runtime", "invoke-endpoint", *common]
    return [[*calling, *target, "--body", "fileb://request.json", "/dev/stdout"] for target in targets]


# model.tar.gz, as SageMaker unpacks it into /opt/ml/model


COMPRESSION = 1  # weights hardly shrink, and a higher level would take minutes


def write_archive(folder: Path, target: Path) -> None:
    """Write everything below `folder` to the archive `target`. Equal folders give equal bytes."""
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=COMPRESSION, fileobj=file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts):
            _add(archive, path, path.relative_to(folder).as_posix())


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    if path.is_dir():
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
        return
    entry.size, entry.mode = path.stat().st_size, 0o644
    with path.open("rb") as content:
        archive.addfile(entry, content)
