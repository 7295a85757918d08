"""The documents agree with the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from docs.generate import blocking_client, client_settings, environment, pages, tables
from hfx.cli import READER_GONE
from hfx.cli.commands import COMMANDS, load
from tests.rigs.files.documents import DOCUMENTS, ROOT, blocks, commands, parse

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def test_every_page_is_as_its_generator_makes_it() -> None:
    for name, text in pages.pages().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"run `make docs` ({name})"


def test_every_exit_code_of_an_error_is_documented() -> None:
    codes = {error.exit_code for error in tables.error_classes()}
    assert codes | {0, READER_GONE} == set(tables.EXIT_CODES)


@pytest.mark.parametrize("generator", [client_settings, blocking_client])
def test_every_module_is_as_its_generator_makes_it(generator: ModuleType) -> None:
    assert (ROOT / generator.FILE).read_text(encoding="utf-8") == generator.module(), "run `make docs`"


def test_every_environment_variable_is_documented() -> None:
    files = [path for folder in ("hfx", "tests", "bench") for path in (ROOT / folder).rglob("*")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".cpp", ".j2", ".js")]
    read = {name for text in texts for name in re.findall(r"""["'](HFX_[A-Z_]+)["']""", text)}
    named = [name for name, *_ in (*environment.option_variables(), *environment.OTHERS, *environment.TESTS)]
    assert read == {name for name in named if name.startswith("HFX_")} and len(named) == len(set(named))


@pytest.mark.parametrize("page", DOCUMENTS)
def test_commands_of_a_page_parse(page: str) -> None:
    for line in commands(page, "hfx"):
        parse(shlex.split(line.split(" < ")[0], comments=True)[1:])


@pytest.mark.parametrize("page", [page for page in DOCUMENTS if page != "CHANGELOG.md"])  # it names former ones
def test_commands_in_the_sentences_of_a_page_exist(page: str) -> None:
    for words in re.findall(r"`hfx ((?:[a-z][a-z-]*(?![\w-]) ?)+)", (ROOT / page).read_text(encoding="utf-8")):
        table = COMMANDS
        for word in words.split():
            assert word in table, words
            if not (table := getattr(load(word, table), "table", {})):
                break


@pytest.mark.parametrize("page", DOCUMENTS)
def test_targets_of_make_in_a_page_exist(page: str) -> None:
    for line in commands(page, "make"):
        assert re.search(rf"^{re.escape(shlex.split(line, comments=True)[1])}:", MAKEFILE, re.MULTILINE), line


@pytest.mark.parametrize("page", DOCUMENTS)
def test_python_of_a_page_compiles(page: str) -> None:
    for text in blocks(page, "python"):
        compile(text, page, "exec")


@pytest.mark.parametrize("page", DOCUMENTS)
def test_every_link_of_a_page_has_an_existing_target(page: str) -> None:
    text = CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_sites_navigation() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^([\w-]+)$", "".join(re.findall(r"```{toctree}(.*?)```", index, re.DOTALL)), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in ROOT.glob("docs/*.md") if path.stem != "index")


def test_the_page_for_language_models_links_every_page() -> None:
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# hfx\n\n> .+\n\n## ", text)
    linked = re.findall(r"^- \[[^\]]+\]\((.+)\): .+[.?]$", text, re.MULTILINE)
    assert sorted(linked) == sorted(path.name for path in ROOT.glob("docs/*.md") if path.stem != "index")


@pytest.mark.full
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="no Sphinx: make docs installs it")
    words = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "docs", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "docs/ARCHITECTURE.md", "docs/serving.md"])
def test_paths_in_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:hfx|bench|tests|docker)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/engine.md", "docs/exactness.md"])
def test_modules_in_a_page_exist(page: str) -> None:
    """Modules are matched by the ends of their paths."""
    files = [
        f"/{path.relative_to(ROOT)}" for folder in ("hfx", "tests", "bench") for path in (ROOT / folder).rglob("*.py")
    ]
    for path in re.findall(r"`([a-z]\w*(?:/\w+)+\.py)`", (ROOT / page).read_text(encoding="utf-8")):
        assert any(file.endswith(f"/{path}") for file in files), path


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and Sphinx make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
