"""Results as tables, charts and pages. Everything here reads Results; nothing here measures.

`figures.py` names what can be shown of a Run, `tables.py` and `comparisons.py` make Tables of Results for terminals,
Markdown and pages, `charts/` has one file a chart, `page.py` makes the one HTML file and `pictures.py` the SVGs.
"""
