"""A batch deployment: reading and writing the YAML of `az ml batch-deployment`, with Azure's defaults.

The YAML has two variants: with `type: model`, the settings are under `settings`; without `type`, they are at the root.
Keys that hfx does not use (`compute`, `environment`) are written back unchanged, so that `az ml` accepts hfx's files.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_args

from hfx.batch.azure.rows import row_settings
from hfx.batch.create import JobSpec, default_rows
from hfx.batch.job import Action, Output
from hfx.batch.models import describe
from hfx.batch.options import RunOptions
from hfx.names import Task
from hfx.strict_json import Json, Node

SCHEMA = "https://azuremlschemas.azureedge.net/latest/batchDeployment.schema.json"
ENDPOINT_NAME = r"[a-zA-Z][-a-zA-Z0-9]*[a-zA-Z0-9]"  # Azure's rule
MODEL_TYPES = ("custom_model", "triton_model", "mlflow_model")
CHOICES = {"output_action": get_args(Action), "logging_level": ("warning", "info", "debug")}
AZURE_ONLY = ("$schema", "description", "tags", "properties", "compute", "environment")
SETTINGS = (
    "mini_batch_size", "max_concurrency_per_instance", "output_action", "output_file_name", "retry_settings",
    "error_threshold", "logging_level",
)  # fmt: skip
NAMED = ("name", "endpoint_name", "type", "model", "code_configuration", "environment_variables", "resources")
OWN_VARIABLES = ("AZUREML_MODEL_DIR", "AZUREML_BI_OUTPUT_PATH")
DEFAULT_MINI_BATCH = 10  # files
MOST = 2**31 - 1  # the largest value of any setting
PLAIN_NAME = re.compile(r"\w[-.\w]{0,99}", re.ASCII)  # a name that is safe as a file name


@dataclass(frozen=True)
class Settings:
    """The settings of a deployment's jobs. The defaults are Azure's.

    For a scoring script, each call of run() gets `mini_batch_size` files (default 10), may take `timeout` seconds, and
    is retried `max_retries` times. For a published model, `mini_batch_size` counts rows, and its default is that of
    `hfx batch run`. A job ends after more than `error_threshold` failed files (rows for a published model); -1 means
    never.
    """

    instance_count: int = 1
    max_concurrency_per_instance: int = 1
    mini_batch_size: int | None = None
    max_retries: int = 3
    timeout: int = 30
    error_threshold: int = -1
    output_action: Action = "append_row"
    output_file_name: str = "predictions.csv"
    logging_level: str = "info"
    environment_variables: dict[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """The number of processes for a scoring script."""
        return self.instance_count * self.max_concurrency_per_instance


@dataclass(frozen=True)
class Deployment:
    """A deployment. `model` is a file or folder, `code` the folder of the scoring script.

    `azure_only` has the keys that only Azure reads. `has_type` says which variant of the YAML was read; writing
    preserves it, as azure-ai-ml has a separate loader for each variant.
    """

    name: str
    endpoint_name: str
    model: Path | None
    code: Path | None
    scoring_script: str | None
    settings: Settings
    azure_only: dict[str, Json]
    has_type: bool = True

    def document(self) -> dict[str, Json]:
        """Return the YAML document, in the format that `parse_deployment` reads."""
        settings: dict[str, Json] = {key: value for key, value in asdict(self.settings).items() if value is not None}
        resources: Json = {"instance_count": settings.pop("instance_count")}
        settings["retry_settings"] = {key: settings.pop(key) for key in ("max_retries", "timeout")}
        document: dict[str, Json] = {"$schema": SCHEMA, **self.azure_only}
        document |= {"name": self.name, "endpoint_name": self.endpoint_name, "resources": resources}
        if self.model is not None:
            document["model"] = {"path": str(self.model)}
        if self.code is not None:
            document["code_configuration"] = {"code": str(self.code), "scoring_script": self.scoring_script}
        if not self.has_type:
            return document | settings
        return {"compute": "local"} | document | {"type": "model", "settings": settings}  # Azure requires a compute


def parse_deployment(document: Node, folder: Path, repository: Path) -> Deployment:
    """Return the deployment in a document whose paths are relative to `folder`. Raises UsageError.

    A registered model `azureml:NAME@latest` stands for the published model NAME of `repository`.
    """
    has_type = "type" in document.value
    root = _root(document, has_type)
    code, script = _code(root.get("code_configuration"), folder)
    model = _model(root["model"], folder, repository) if "model" in root else None
    if code is None and model is None:
        document.refuse("has neither model nor code_configuration", "Give at least one of them.")
    return Deployment(
        checked_name(required(document, root, "name")),
        checked_name(required(document, root, "endpoint_name"), ENDPOINT_NAME),
        model,
        code,
        script,
        _settings(root, has_type),
        {key: _resolved(key, root[key].value, folder) for key in AZURE_ONLY if key in root},
        has_type,
    )


def _root(document: Node, has_type: bool) -> dict[str, Node]:
    for key in SETTINGS if has_type else ("settings",):
        if key in document.value:
            fix = "Move it under `settings`." if has_type else "Add `type: model`."
            document.child(key, None).refuse("does not belong at the root", fix)
    root = document.known(*AZURE_ONLY, *NAMED, *(["settings"] if has_type else SETTINGS))
    if "type" in root and root["type"].choice("model", "pipeline") != "model":
        root["type"].refuse("can't be pipeline here", "hfx runs deployments of type model.")
    return root


def published_spec(deployment: Deployment, inputs: tuple[str, ...] = ()) -> tuple[JobSpec, Task, RunOptions]:
    """Return the job, task and options of the `hfx batch run` to which a deployment without a script corresponds.

    Raises UsageError, and ModelMissing if the model is not published.
    """
    assert deployment.model is not None
    name, settings = deployment.model.name, deployment.settings
    options = RunOptions(
        repository=str(deployment.model.parent),
        workers=settings.processes,
        error_threshold=str(settings.error_threshold),
    )
    task, metadata, _ = describe(name, options.place())
    chosen = row_settings(task, metadata, settings.environment_variables)
    output = Output(settings.output_action, settings.output_file_name, (), "")
    rows = settings.mini_batch_size or default_rows(task)
    spec = JobSpec(name, inputs, chosen.columns, chosen.settings, chosen.seed, output, mini_batch_size=rows)
    return spec, task, options


def required(document: Node, members: dict[str, Node], key: str) -> Node:
    """Return the member `key` of a document. Raises UsageError if the member is missing."""
    if key not in members:
        document.refuse(f"has no {key}", f"Add `{key}:`.")
    return members[key]


def checked_name(value: Node, pattern: str = r"[a-zA-Z][-_a-zA-Z0-9]*[a-zA-Z0-9]") -> str:
    """Return the name in `value`: 3 to 32 characters that match `pattern`. Raises UsageError."""
    name = value.string()
    if not (3 <= len(name) <= 32 and re.fullmatch(pattern, name)):
        value.refuse(f"is {name!r}, which is not a name", f"A name has 3 to 32 characters of the form {pattern}.")
    return name


def _model(value: Node, folder: Path, repository: Path) -> Path:
    if isinstance(value.value, dict):
        members = value.known("path", "name", "version", "type", "description", "tags", "properties", "stage")
        if "type" in members and members["type"].choice(*MODEL_TYPES) == "mlflow_model":
            members["type"].refuse("can't be mlflow_model here", "Write a scoring script that loads the model.")
        return _existing(required(value, members, "path"), folder)
    registered = re.fullmatch("azureml:([^:@/]+)(@latest|:1)", value.string())
    if registered is None and value.string().startswith("azureml:"):
        value.refuse("names no model of a repository", "Write azureml:NAME@latest, NAME published by `hfx export`.")
    if registered is None:
        return _existing(value, folder)
    path = repository / registered[1]
    if not path.is_dir():
        value.refuse(f"is not in {repository}", "Give --repository DIR, or export the model first.")
    return path.resolve()


def _existing(value: Node, folder: Path) -> Path:
    path = folder / value.string()
    if not path.exists():
        value.refuse(f"is {path}, which does not exist", "Correct the path; it is relative to the file.")
    return path.resolve()


def _code(value: Node | None, folder: Path) -> tuple[Path | None, str | None]:
    if value is None:
        return None, None
    members = value.known("code", "scoring_script")
    code = _existing(required(value, members, "code"), folder)
    script = required(value, members, "scoring_script")
    if not (code / script.string()).is_file() or not (code / script.string()).resolve().is_relative_to(code):
        script.refuse(f"is not a file of {code}", "Name a file below `code`.")
    return code, script.string()


def _settings(root: dict[str, Node], has_type: bool) -> Settings:
    found = root
    if has_type:
        settings = root.get("settings")
        found = settings.known(*SETTINGS, "environment_variables", "instance_count") if settings else {}
    resources = root["resources"].known("instance_count") if "resources" in root else {}
    retries = found["retry_settings"].known("max_retries", "timeout") if "retry_settings" in found else {}
    least = {"mini_batch_size": 1, "max_concurrency_per_instance": 1, "error_threshold": -1}
    least |= {"instance_count": 1, "max_retries": 0, "timeout": 1}
    numbers = {**found, **resources, **retries}
    values: dict[str, object] = {key: numbers[key].integer(low, MOST) for key, low in least.items() if key in numbers}
    values |= {key: found[key].choice(*choices) for key, choices in CHOICES.items() if key in found}
    if "output_file_name" in found:
        values["output_file_name"] = _file_name(found["output_file_name"])
    places = [place["environment_variables"] for place in (root, found) if "environment_variables" in place]
    variables = {name: text for place in places for name, text in _variables(place).items()}
    return Settings(**values, environment_variables=variables)  # type: ignore[arg-type]


def _file_name(value: Node) -> str:
    name = value.string()
    if Path(name).name != name or name.startswith(".") or len(name.encode()) > 200 or not name.isprintable():
        value.refuse("must be the name of a file, without a folder", "E.g. predictions.csv.")
    return name


def _variables(value: Node) -> dict[str, str]:
    variables = {}
    for name, member in value.items():
        if not isinstance(member.value, str | int | float) or isinstance(member.value, bool):
            member.refuse("must be text or a number", "Put it in quotes.")
        if name in OWN_VARIABLES or "=" in name:
            member.refuse("can't be set", "The job sets it.")
        variables[name] = str(member.value)
    return variables


def _resolved(key: str, value: Json, folder: Path) -> Json:
    """Return `value`. In `environment`, make paths absolute, because the file is stored in another folder."""
    if key != "environment" or not isinstance(value, dict):
        return value
    value = dict(value)
    if isinstance(value.get("conda_file"), str):
        value["conda_file"] = str((folder / str(value["conda_file"])).resolve())
    if isinstance(build := value.get("build"), dict) and isinstance(build.get("path"), str):
        value["build"] = {**build, "path": str((folder / str(build["path"])).resolve())}
    return value
