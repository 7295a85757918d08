"""The input of the rules: the YAML and JSON files of a folder, and the containers in them that run Triton.

The files may come from anywhere. Values of unexpected types are ignored, because the platform itself refuses them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from hfx.errors import RepositoryError
from hfx.repository.config_pbtxt import CONFIG
from hfx.repository.subject import Problem
from hfx.strict_json import read_text

MAX_FILE_BYTES = 256 << 10
MAX_FIELDS = 10_000  # the most fields of a mapping after YAML merges (`<<`), which can grow exponentially
ENDINGS = (".yaml", ".yml", ".json")
Table = Mapping[str, Any]

TEMPLATED = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")  # their pods are in spec.template
KSERVE_RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")
TRITON_IMAGE = re.compile(
    r"(?:^|/)(?:sagemaker-tritonserver|tritonserver|hfx-triton)(?::(?P<tag>\d\d\.\d\d)?\S*)?(?:@\S+)?$"
)
NUMBER = re.compile(r"[0-9]{1,9}")
EXIT_SECONDS = 30  # the default of tritonserver's --exit-timeout-secs and of hfx serve's --drain


def table(value: Any, *keys: str) -> Table:
    """Return the mapping below `keys`; an empty mapping if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[Table]:
    """Return the mappings in a list; empty if `value` is not a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


@dataclass(frozen=True)
class Document:
    """A YAML or JSON document. `path` is the path of its file, relative to the folder."""

    path: str
    value: Table

    @property
    def kind(self) -> str:
        """The `kind` of a Kubernetes object; empty for other documents."""
        return str(self.value.get("kind", ""))

    @property
    def title(self) -> str:
        """The object's kind and name."""
        return f"{self.kind} {table(self.value, 'metadata').get('name', 'without a name')}"


@dataclass(frozen=True)
class Container:
    """A container that runs Triton, from a pod or from a service of compose."""

    document: Document
    title: str
    value: Table

    @cached_property
    def words(self) -> list[str]:
        """The words of the container's command and arguments. Shell lines are split at spaces."""
        parts = [self.value.get(key) for key in ("entrypoint", "command", "args")]
        lines = [line for part in parts for line in (part if isinstance(part, list) else [part])]
        words = " ".join(line for line in lines if isinstance(line, str)).split()
        return [word.strip("'\"") for word in words]

    @property
    def is_hfx(self) -> bool:
        """Whether the container runs `hfx serve`, and not tritonserver itself."""
        return _runs_hfx(self.words)

    @property
    def exit_seconds(self) -> int:
        """The seconds that requests in flight may take after SIGTERM: `hfx serve` drains HTTP, then gRPC."""
        option, times = ("--drain", 2) if self.is_hfx else ("--exit-timeout-secs", 1)
        value = self.option(option)
        return times * (int(value) if NUMBER.fullmatch(value) else EXIT_SECONDS)

    @property
    def tag(self) -> str:
        """The Triton release in the image's tag; empty if there is none."""
        match = TRITON_IMAGE.search(str(self.value.get("image", "")))
        return (match["tag"] or "") if match else ""

    def option(self, name: str) -> str:
        """Return the value of an option of the container's command; empty if the command lacks the option."""
        for word, following in pairwise([*self.words, ""]):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return ""

    def problem(self, message: str) -> Problem:
        """Return a problem of this container."""
        return Problem(self.document.path, f"{self.title}: {message}")


@dataclass(frozen=True)
class Files:
    """The documents of a folder, and the reasons why other files can't be read."""

    documents: tuple[Document, ...]
    unreadable: tuple[Problem, ...]

    @cached_property
    def pods(self) -> tuple[Container, ...]:
        """The containers of Kubernetes and KServe that run Triton."""
        return tuple(container for document in self.documents for container in _of_pod(document))

    @cached_property
    def services(self) -> tuple[Container, ...]:
        """The services of compose files that run Triton."""
        return tuple(container for document in self.documents for container in _of_compose(document))

    @property
    def containers(self) -> tuple[Container, ...]:
        """The containers of all platforms that run Triton."""
        return (*self.pods, *self.services)

    def with_key(self, key: str) -> Iterator[Document]:
        """Return the documents with the field `key`, which identifies the bodies of SageMaker's calls."""
        return (document for document in self.documents if key in document.value)


def _of_pod(document: Document) -> Iterator[Container]:
    spec = table(document.value, "spec")
    if document.kind in TEMPLATED:
        spec = table(spec, "template", "spec")
    elif document.kind == "InferenceService":
        spec = table(spec, "predictor")
    elif document.kind not in ("Pod", *KSERVE_RUNTIMES):
        return
    for each in tables(spec.get("containers")):
        container = Container(document, document.title, each)
        if _runs_triton(container):
            yield container


def _of_compose(document: Document) -> Iterator[Container]:
    if document.kind:
        return
    for name, each in table(document.value, "services").items():
        container = Container(document, f"service {name}", each if isinstance(each, dict) else {})
        if _runs_triton(container):
            yield container


def _runs_triton(container: Container) -> bool:
    words = container.words
    if not words:
        return TRITON_IMAGE.search(str(container.value.get("image", ""))) is not None
    return _runs_hfx(words) or any(Path(word).name == "tritonserver" for word in words)


def _runs_hfx(words: Sequence[str]) -> bool:
    return any(Path(word).name == "hfx" and following == "serve" for word, following in pairwise(words))


# Reading


def read_files(folder: Path) -> Files:
    """Read all YAML and JSON files below `folder`, except in model folders and above MAX_FILE_BYTES."""
    documents, unreadable = [], []
    for path in _paths(folder):
        name = path.relative_to(folder).as_posix()
        try:
            documents += [Document(name, value) for value in _parsed(path) if isinstance(value, dict)]
        except (RepositoryError, yaml.YAMLError, ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            unreadable.append(Problem(name, f"It can't be read: {reason}."))
    return Files(tuple(documents), tuple(unreadable))


def _paths(folder: Path) -> Iterator[Path]:
    for root, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith(".") and not Path(root, name, CONFIG).is_file())
        for name in sorted(files):
            path = Path(root, name)
            if name.endswith(ENDINGS) and path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
                yield path


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # deep nesting crashes the loader in C
    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_FIELDS:
            raise ValueError(f"a mapping has more than {MAX_FIELDS} fields")


def _parsed(path: Path) -> list[Any]:
    text = read_text(path, MAX_FILE_BYTES)
    if path.suffix == ".json":
        return [json.loads(text)]
    documents = list(yaml.load_all(text, Loader=_Loader))
    return [each for value in documents for each in (value["items"] if _is_list(value) else [value])]


def _is_list(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list)
