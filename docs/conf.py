"""Sphinx configuration of the documentation site (`make docs`)."""

import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT.get("urls", {}).get("Source", "")  # where pages are edited, once the project has an address

project = "hfx"
release = version = PROJECT["version"]
html_title = f"hfx {release}"
html_theme = "furo"
html_logo = html_favicon = "images/logo.svg"
html_theme_options: dict[str, object] = {"sidebar_hide_name": False}
if SOURCE:
    html_theme_options |= {"source_repository": SOURCE, "source_branch": "main", "source_directory": "docs/"}
highlight_language = "none"  # of blocks without a language, such as output
html_static_path: list[str] = []
html_copy_source = False
html_show_copyright = False
extensions = ["myst_parser"]
myst_heading_anchors = 4
nitpicky = True
