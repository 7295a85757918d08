"""Write every generated file: modules before the pages, which show them."""

from __future__ import annotations

from pathlib import Path

from docs.generate import blocking_client, client_settings
from docs.generate.pages import pages

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Into this checkout."""
    for module in (client_settings, blocking_client):
        (ROOT / module.FILE).write_text(module.module(), encoding="utf-8")
    for file, content in pages().items():
        (ROOT / "docs" / file).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
