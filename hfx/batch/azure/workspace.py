"""The workspace: endpoints, deployments and jobs as files, all written atomically.

    endpoints/E/endpoint.yml
    endpoints/E/deployments/D.yml
    endpoints/E/deployments/D.TOKEN/  a copy of the code, from when the deployment was created
    jobs/J/                           see hfx/batch/azure/jobs.py

Names that begin with a dot are leftovers of a crash.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hfx.batch.azure.deployment import (
    DEFAULT_MINI_BATCH,
    ENDPOINT_NAME,
    PLAIN_NAME,
    Deployment,
    checked_name,
    parse_deployment,
    published_spec,
    required,
)
from hfx.batch.azure.documents import read_document, with_settings, write_document
from hfx.errors import UsageError
from hfx.strict_json import Json, Node

SCHEMA = "https://azuremlschemas.azureedge.net/latest/batchEndpoint.schema.json"
MAX_CODE_BYTES = 300 << 20  # Azure's limit
NOT_CODE = ("__pycache__", ".git", ".ipynb_checkpoints")


@dataclass(frozen=True)
class Endpoint:
    """A batch endpoint. `default` is its default deployment; `azure_only` has the keys that only Azure reads."""

    name: str
    default: str | None
    azure_only: dict[str, Json]

    def document(self) -> dict[str, Json]:
        """Return the YAML document, in the format that `parse_endpoint` reads."""
        defaults: dict[str, Json] = {"defaults": {"deployment_name": self.default}} if self.default else {}
        return {"$schema": SCHEMA, "name": self.name, **self.azure_only, **defaults}


def parse_endpoint(document: Node) -> Endpoint:
    """Return the endpoint in a document. Raises UsageError."""
    members = document.known("$schema", "name", "description", "tags", "properties", "auth_mode", "defaults")
    defaults = members["defaults"].known("deployment_name") if "defaults" in members else {}
    if "auth_mode" in members:
        members["auth_mode"].choice("aad_token")
    default = checked_name(defaults["deployment_name"]) if "deployment_name" in defaults else None
    azure_only = {key: value.value for key, value in members.items() if key not in ("name", "defaults")}
    return Endpoint(checked_name(required(document, members, "name"), ENDPOINT_NAME), default, azure_only)


@dataclass(frozen=True)
class Workspace:
    """The folder of all endpoints, deployments and jobs. Its methods raise UsageError."""

    folder: Path
    repository: Path = Path("model_repository")

    @property
    def jobs(self) -> Path:
        """The folder of the jobs."""
        return self.folder / "jobs"

    def endpoints(self) -> list[Endpoint]:
        """Return all endpoints, by name."""
        return [parse_endpoint(read_document(path)) for path in sorted(self._endpoints.glob("[!.]*/endpoint.yml"))]

    def endpoint(self, name: str) -> Endpoint:
        """Return the endpoint `name`."""
        return parse_endpoint(self.endpoint_file(name))

    def endpoint_file(self, name: str) -> Node:
        """Return the document of an endpoint."""
        path = self._endpoints / name / "endpoint.yml"
        if not PLAIN_NAME.fullmatch(name) or not path.is_file():
            raise UsageError(f"There is no endpoint {name!r} in {self.folder}.", "See `hfx batch azure endpoint list`.")
        return read_document(path)

    def write_endpoint(self, endpoint: Endpoint) -> None:
        """Create or replace an endpoint; its deployments and jobs are kept."""
        if endpoint.default is not None:
            self.deployment(endpoint.name, endpoint.default)
        write_document(self._endpoints / endpoint.name / "endpoint.yml", endpoint.document())

    def delete_endpoint(self, name: str) -> None:
        """Delete an endpoint and its deployments; its jobs are kept."""
        self.endpoint_file(name)
        removed = self._endpoints / f".{name}.{os.getpid()}"
        (self._endpoints / name).rename(removed)
        shutil.rmtree(removed)

    def deployments(self, endpoint: str) -> list[Deployment]:
        """Return the deployments of an endpoint, by name."""
        self.endpoint_file(endpoint)
        paths = sorted((self._endpoints / endpoint / "deployments").glob("*.yml"))
        return [parse_deployment(read_document(path), path.parent, self.repository) for path in paths]

    def deployment(self, endpoint: str, name: str, settings: Sequence[str] = ()) -> Deployment:
        """Return a deployment of an endpoint, changed by `settings` such as KEY=VALUE.

        In a file without `type`, whose settings are at the root, `settings.KEY` means KEY.
        """
        document = self._deployment_file(endpoint, name)
        root = "" if "type" in document.value else "settings."
        document = with_settings(document, [setting.removeprefix(root) for setting in settings])
        return parse_deployment(document, self._deployment_path(endpoint, name).parent, self.repository)

    def _deployment_file(self, endpoint: str, name: str) -> Node:
        """Return the document of a deployment."""
        self.endpoint_file(endpoint)
        path = self._deployment_path(endpoint, name)
        if not PLAIN_NAME.fullmatch(name) or not path.is_file():
            raise UsageError(
                f"The endpoint {endpoint} has no deployment {name!r}.",
                f"`hfx batch azure deployment list --endpoint-name {endpoint}` shows all.",
            )
        return read_document(path)

    def write_deployment(self, deployment: Deployment, set_default: bool = False) -> Deployment:
        """Create or replace a deployment, with a copy of its code. Running jobs have copies of their own."""
        endpoint = self.endpoint(deployment.endpoint_name)
        size = DEFAULT_MINI_BATCH if deployment.code else published_spec(deployment)[0].mini_batch_size
        if deployment.settings.mini_batch_size is None:  # Azure's parser requires a mini-batch size
            deployment = replace(deployment, settings=replace(deployment.settings, mini_batch_size=size))
        path = self._deployment_path(endpoint.name, deployment.name)
        if deployment.code is not None:
            kept = path.with_suffix(f".{secrets.token_hex(4)}")
            copy_code(deployment.code, kept)
            deployment = replace(deployment, code=Path(kept.name))
        write_document(path, deployment.document())
        _remove_code(path, keep=deployment.code)
        if set_default:
            self.write_endpoint(replace(endpoint, default=deployment.name))
        return self.deployment(endpoint.name, deployment.name)

    def delete_deployment(self, endpoint: str, name: str) -> None:
        """Delete a deployment. If it was the endpoint's default, the endpoint has no default afterwards."""
        self._deployment_file(endpoint, name)
        parent = self.endpoint(endpoint)
        if parent.default == name:
            self.write_endpoint(replace(parent, default=None))
        path = self._deployment_path(endpoint, name)
        path.unlink()
        _remove_code(path, keep=None)

    @property
    def _endpoints(self) -> Path:
        return self.folder / "endpoints"

    def _deployment_path(self, endpoint: str, name: str) -> Path:
        return self._endpoints / endpoint / "deployments" / f"{name}.yml"


def copy_code(code: Path, target: Path) -> None:
    """Copy the folder `code` to `target`. Raises UsageError."""
    try:
        if sum(path.lstat().st_size for path in code.rglob("*")) > MAX_CODE_BYTES:
            raise UsageError(
                f"The code {code} is larger than {MAX_CODE_BYTES >> 20} MiB.", "Put models and data elsewhere."
            )
        shutil.copytree(code, target, ignore=shutil.ignore_patterns(*NOT_CODE))
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise UsageError(f"The code {code} can't be copied: {error}.", "Correct the folder.") from error


def _remove_code(path: Path, keep: Path | None) -> None:
    """Delete the copies of the code of the deployment in the file `path`, except `keep`."""
    for copy in path.parent.glob(f"{path.stem}.*"):
        if copy.is_dir() and (keep is None or copy.name != keep.name):
            shutil.rmtree(copy, ignore_errors=True)
