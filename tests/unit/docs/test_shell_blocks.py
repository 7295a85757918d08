"""kubectl and docker commands of the documents, which no test runs, name existing files and options."""

from __future__ import annotations

import itertools
import re
import shlex

import pytest

from docs.generate import environment
from tests.rigs.files.documents import DOCUMENTS, ROOT, commands, parse

TEMPLATES = ROOT / "hfx" / "deploy" / "templates"
PORTS = {"8000", "8001", "8002"}
VARIABLES = {name for name, *_ in (*environment.option_variables(), *environment.OTHERS)}
LANGUAGES = {"bash", "sh", "text", "python", "json", "yaml", "{toctree}", ""}


@pytest.mark.parametrize("page", DOCUMENTS)
def test_blocks_have_a_known_language(page: str) -> None:
    fences = re.findall(r"^```(\S*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0 and set(fences[::2]) <= LANGUAGES and not any(fences[1::2])


@pytest.mark.parametrize("page", DOCUMENTS)
def test_files_that_kubectl_reads_are_written_by_the_deploy_of_the_page(page: str) -> None:
    for line in commands(page, "kubectl"):
        for path in re.findall(r"--filename (\S+)", line):
            folder, _, rest = path.rstrip("/").partition("/")
            [target] = {words[2] for words in deploys(page) if words[words.index("--output") + 1] == folder}
            template = TEMPLATES / target / rest
            assert template.is_dir() or template.with_name(f"{template.name}.j2").is_file(), line


@pytest.mark.parametrize("page", DOCUMENTS)
def test_docker_commands_name_existing_files_ports_and_options(page: str) -> None:
    for line in commands(page, "docker"):
        words = shlex.split(line, comments=True)
        match words[1]:
            case "build":
                check_build(words, page)
            case "run":
                check_run(words)
            case other:
                assert other in ("stop", "exec", "compose"), line


def check_build(words: list[str], page: str) -> None:
    if "--file" not in words:  # a folder of `hfx deploy docker`
        assert ["docker", words[-1]] in [[each[2], each[each.index("--output") + 1]] for each in deploys(page)]
        return
    dockerfile = ROOT / words[words.index("--file") + 1]
    arguments = set(re.findall(r"^ARG (\w+)", dockerfile.read_text(encoding="utf-8"), re.MULTILINE))
    assert {word.partition("=")[0] for before, word in pairs(words) if before == "--build-arg"} <= arguments


def check_run(words: list[str]) -> None:
    for option, value in pairs(words):
        if option in ("-e", "--env"):
            assert value.partition("=")[0] in VARIABLES, value
        if option == "-p":
            assert value.rpartition(":")[2] in PORTS, value
    if "hfx" in words:
        parse(words[words.index("hfx") + 1 :])


def deploys(page: str) -> list[list[str]]:
    """Return the words of the page's `hfx deploy` lines that write a folder."""
    found = [shlex.split(line, comments=True) for line in commands(page, "hfx")]
    return [words for words in found if words[1:2] == ["deploy"] and "--output" in words]


def pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(words))


def test_the_documents_have_kubectl_and_docker_commands() -> None:
    lines = [line for page in DOCUMENTS for program in ("kubectl", "docker") for line in commands(page, program)]
    assert len(lines) > 5
