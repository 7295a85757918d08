"""Every command of the documents runs in order, in a shell or as a Python program, against a real `hfx serve`.

Ports are replaced by those of the test's server. Lines that install, build images or call make are not run.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from docs.generate.tables import PARAMETERS
from hfx.names import MEMBER_SUFFIXES
from hfx.repository.config_pbtxt import parse_config
from tests import zoo
from tests.rigs.checkpoints.decoder_rankers import CHATML, Ranker, write_decoder
from tests.rigs.checkpoints.published import VNNI
from tests.rigs.clients.dialect_calls import RANKER
from tests.rigs.files.documents import TYPED, tagged_blocks
from tests.rigs.machine.tiers import full
from tests.rigs.servers.serve_process import ServeProcess, serving

pytestmark = pytest.mark.triton

PYTHON = Path(sys.executable)
SECONDS = 300.0
REVISION = "0" * 40
# Checkpoints of the hub that the documents name, and the trained ones that stand for them.
HUB = {
    "distilbert/distilbert-base-uncased": "sentiment-distilbert",
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": "sentiment-distilbert",
    "distilbert/distilgpt2": "stories-gpt2",
    "facebook/bart-large-cnn": "summaries-bart",
    "sentence-transformers/all-mpnet-base-v2": "similar-mpnet",
    "protectai/deberta-v3-base-prompt-injection-v2": "sentiment-deberta",
    "dslim/bert-base-NER": "entities-bert",
    "lxyuan/distilbert-base-multilingual-cased-sentiments-student": "sentiment-distilbert",
}
# Models of the documents, and those of the shared repository.
NAMES = {
    "sentiment": "sentiment-fp32",
    "entities": "entities-fp32",
    "answers": "answers-fp32",
    "nli": "nli-fp32",
    "similar": "similar-int8",
    "ranker": RANKER,
}
NOT_TYPED = r"pip |python -m pip|make |docker "
DONE_BEFORE = r"hfx (export|serve|reload|lint|perf run) ?"  # where a server with the models runs already
EXPORTING = [page for page in TYPED if any("hfx export" in text for _, text in tagged_blocks(page, "bash"))]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Environment variables of a machine whose hub cache has the checkpoints of HUB."""
    home = tmp_path_factory.mktemp("huggingface")
    for name, checkpoint in HUB.items():
        cached = home / "hub" / f"models--{name.replace('/', '--')}"
        shutil.copytree(zoo.checkpoint(checkpoint), cached / "snapshots" / REVISION)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(REVISION)
    guard = home / "hub" / "models--Qwen--Qwen3Guard-Gen-0.6B"
    write_decoder(guard / "snapshots" / REVISION, Ranker(template=CHATML))
    (guard / "refs").mkdir()
    (guard / "refs" / "main").write_text(REVISION)
    path = os.pathsep.join([str(PYTHON.parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "HF_HOME": str(home)}


@pytest.fixture(scope="module")
def served(many_tasks: Path) -> Iterator[ServeProcess]:
    """`hfx serve` of the shared models, open to everybody on this machine."""
    with serving(many_tasks) as running:
        yield running


@pytest.mark.parametrize("page", ["README.md", full("docs/quickstart.md"), full("docs/by-hand.md")])
def test_the_commands_of_a_page_work_against_a_server(
    page: str, served: ServeProcess, many_tasks: Path, environment: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / "model_repository").symlink_to(many_tasks)
    for language, text in tagged_blocks(page, "bash", "python"):
        lines = re.sub(rf"^({NOT_TYPED}|{DONE_BEFORE}).*$", ":", text, flags=re.MULTILINE)
        run(language, renamed(with_ports(lines, served)), environment, tmp_path)


@pytest.mark.parametrize("page", [full(page) for page in EXPORTING])
def test_the_commands_of_a_page_work_from_export_to_answer(
    page: str, environment: Mapping[str, str], tmp_path: Path
) -> None:
    server: ServeProcess | None = None
    environment = {**environment, "HF_HUB_OFFLINE": "1"}
    with ExitStack() as stack:
        for language, text in tagged_blocks(page, "bash", "python"):
            lines = re.sub(rf"^({NOT_TYPED}).*$", ":", text, flags=re.MULTILINE)
            if not VNNI:  # coarser weights cost small generators more than 1 % of their tokens
                lines = re.sub(r"^(hfx export .*)$", r"\1 --max-drop 0.06", lines, flags=re.MULTILINE)
            before, *after = re.split(r"^hfx serve$|^hfx serve .*$", lines, flags=re.MULTILINE)
            run(language, with_ports(before, server), environment, tmp_path)
            if after:
                server = stack.enter_context(serving(tmp_path / "model_repository"))
                run(language, with_ports(after[0], server), environment, tmp_path)


def test_every_parameter_of_a_configuration_is_documented(many_tasks: Path) -> None:
    documented = {(folder.removeprefix("NAME"), name) for folder, name, _ in PARAMETERS}
    for path in many_tasks.glob("*/**/*.pbtxt"):
        folder = path.relative_to(many_tasks).parts[0]
        suffix = next((suffix for suffix in MEMBER_SUFFIXES if folder.endswith(suffix)), "")
        for name in parse_config(path.read_text(encoding="utf-8")).parameters:
            shown = re.sub(r"^session\..*", "session.*", name)
            assert (suffix, shown) in documented, path


def with_ports(text: str, server: ServeProcess | None) -> str:
    """Return `text` with the ports of `server`, and a free port for locust's page."""
    if server is None:
        return text
    grpc = server.ready["grpc_url"]
    text = re.sub(r"\bhfx (infer|perf run)\b(?!.*--(?:url|local)\b)", rf"hfx \1 --url {grpc}", text)
    text = re.sub(r"\b8000\b", str(urlsplit(server.http_url).port), text)
    return re.sub(r"\b8001\b", grpc.rpartition(":")[2], text).replace("8089", str(free_port()))


def renamed(text: str) -> str:
    """Return `text` with the names of the shared models."""
    return re.sub(rf"\b({'|'.join(NAMES)})\b", lambda match: NAMES[match[1]], text)


def run(language: str, text: str, environment: Mapping[str, str], folder: Path) -> None:
    words = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [str(PYTHON), "-c"]
    done = subprocess.run(
        [*words, text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
