"""Reports from results: an answer in one sentence, tables, charts, and one HTML page."""

from __future__ import annotations

from pathlib import Path

import hfx

TEMPLATE = Path(__file__).parent / "template"


def render(template: str, **values: object) -> str:
    """Return the file `template` of TEMPLATE with escaped `values`, the common `style`, and the `version` of hfx."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (TEMPLATE / "page.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(style=style, version=hfx.__version__, **values)
