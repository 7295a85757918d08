"""Sphinx configuration of the documentation site (`make docs`)."""

project = "hfx"
html_title = "hfx"
html_theme = "furo"
html_static_path: list[str] = []
html_copy_source = False
html_show_copyright = False
extensions = ["myst_parser"]
myst_heading_anchors = 4
nitpicky = True
