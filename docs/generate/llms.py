"""The page for language models, docs/llms.txt, in the format of llmstxt.org: every page with its first sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from docs.generate.tables import MADE

DOCS = Path(__file__).resolve().parents[1]
TOCTREE = re.compile(r"^```{toctree}\n:caption: ([^\n]+)\n:hidden:\n\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
SENTENCE = re.compile(r".+?(?:(?<!\.)[.?](?=\s)|$)")


def llms_text(generated: Mapping[str, str]) -> str:
    """Return the text of docs/llms.txt. `generated` are the texts of generated pages by their file names."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    title, summary = _opening(index)
    sections = (f"\n## {caption}\n\n" + "".join(_links(pages, generated)) for caption, pages in TOCTREE.findall(index))
    return f"# {title}\n\n> {summary}\n" + "".join(sections)


def _links(pages: str, generated: Mapping[str, str]) -> Iterator[str]:
    for name in pages.split():
        file = f"{name}.md"
        title, text = _opening(generated.get(file) or (DOCS / file).read_text(encoding="utf-8"))
        yield f"- [{title}]({file}): {SENTENCE.findall(text)[0]}\n"


def _opening(page: str) -> tuple[str, str]:
    """Return the title and the first paragraph of a page, without the links."""
    title, first, *_ = re.split(r"\n\n+", BLOCK.sub("", page).removeprefix("# ").replace(MADE, ""))
    return title.strip(), LINK.sub(r"\1", " ".join(first.split()))
