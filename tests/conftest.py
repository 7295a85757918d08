"""What many tests share: published models of trained checkpoints, and one real server that serves them all."""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from hfx.triton import EmbeddedServer
from tests import zoo
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.durations import Durations
from tests.rigs.servers import installed_triton

# Published name -> (checkpoint, precision, runtime). Both precisions of every task, and both runtimes of one.
PUBLISHED = {
    "sentiment-fp32": ("sentiment-distilbert", "fp32", "onnxruntime"),
    "sentiment-int8": ("sentiment-distilbert", "int8", "auto"),
    "sentiment-int8-rows": ("sentiment-distilbert", "int8", "onnxruntime"),
    "topics-fp32": ("topics-roberta", "fp32", "onnxruntime"),
    "topics-int8": ("topics-roberta", "int8", "onnxruntime"),
    "entities-fp32": ("entities-bert", "fp32", "onnxruntime"),
    "entities-int8": ("entities-bert", "int8", "auto"),
    "answers-fp32": ("answers-bert", "fp32", "auto"),
    "answers-int8": ("answers-bert", "int8", "auto"),
    "nli-fp32": ("nli-bart", "fp32", "onnxruntime"),
    "nli-int8": ("nli-bart", "int8", "onnxruntime"),
    "similar-fp32": ("similar-mpnet", "fp32", "auto"),
    "similar-int8": ("similar-mpnet", "int8", "onnxruntime"),
}


ROOT = Path(__file__).resolve().parents[1]
WITH_SERVER = ("tests/triton/", "tests/attacks/test_hostile_requests.py")
# Fixtures that start a server or export models, once for all the files that use them. The files of a group run in one
# worker; a file that uses fixtures of several groups is in the first of them.
GROUPS = {
    "writing_server": "server of generators",
    "writers": "server of generators",
    "dialects": "front",
    "many_tasks": "front",
    "server": "server of encoders",
    "perf_server": "measured server",
}
SHARED = re.compile(rf"\b({'|'.join(GROUPS)}): ")
# They are parameters of tests and fixtures; and those of them that a file has itself.
PARAMETERS = re.compile(r"^(?:def test_|@pytest\.fixture.*\ndef )\w+\(([^)]*)", re.MULTILINE)
OWN = re.compile(r"^def (server)\(", re.MULTILINE)
TRAINED = {"batch_repository"}  # fixtures of tests/unit that train and export

installed_triton.use()

# A shell that starts the tests in the background makes them, and all that they start, deaf to SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """With several workers, a file stays in one of them, and one runs all files of a group."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


@cache
def group_of(file: str) -> str:
    """Return the group whose fixtures the tests of a file use, and that are not its own; the file if there is none."""
    if not file.startswith(WITH_SERVER):
        return file
    text = (ROOT / file).read_text(encoding="utf-8")
    used = {name for parameters in PARAMETERS.findall(text) for name in SHARED.findall(parameters)}
    used -= set(OWN.findall(text))
    return next((group for fixture, group in GROUPS.items() if fixture in used), file)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compare-durations", action="store_true", help="compare files' times with tests/durations.tsv")
    parser.addoption("--write-durations", action="store_true", help="write files' times to tests/durations.tsv")
    parser.addoption("--seed", type=int, help="in tests of many seeds, run this one alone")
    parser.addoption("--seeds", type=int, help="in tests of many seeds, run so many")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker and (config.getoption("--compare-durations") or config.getoption("--write-durations")):
        config.pluginmanager.register(Durations())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False  # it puts files with few tests last, and those are often long
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of trained models are slow. Files with slow tests come first, so that no worker begins one at the end."""
    for item in items:
        if TRAINED.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow and not item.nodeid.startswith(WITH_SERVER))


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of garbage collections: each export makes five, a fifth of its time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """And what the tests of a file have loaded: libraries import most of themselves when they are used."""
    if nextitem is None or nextitem.path != item.path:
        pytest_collection_finish()


@pytest.fixture(scope="session", autouse=True)
def short_exports() -> Iterator[None]:
    """Exports prove a compiled tokenizer on few texts, in 0.05 s in place of 4; test_tokenizers.py has more.

    And they time runtimes in the least rounds, in 0.1 s in place of 3: which one is chosen does not matter.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hfx.exporter.encoder.one_hop.GENERATED", 200)
        patch.setattr("hfx.exporter.runtime.SETTLED_SECONDS", 0.0)
        yield


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with everything in PUBLISHED."""
    folder = tmp_path_factory.mktemp("repository")
    for name in PUBLISHED:
        publish(name, folder)
    return folder


def publish(name: str, repository: Path) -> None:
    """Publish one of PUBLISHED in `repository`."""
    checkpoint, precision, runtime = PUBLISHED[name]
    export_zoo(checkpoint, repository, name, precision, runtime)


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[EmbeddedServer]:
    """A real Triton that serves `repository`."""
    with EmbeddedServer(repository) as running:
        yield running


@pytest.fixture(scope="session")
def pipe() -> Callable[..., object]:
    """transformers' own pipeline on a zoo checkpoint, made once for each task and checkpoint."""

    @cache
    def make(task: str, checkpoint: str, **options: object) -> object:
        from transformers import pipeline

        return pipeline(task, model=str(zoo.checkpoint(checkpoint)), device="cpu", **options)  # type: ignore[call-overload]

    return make
