"""Measuring served models: load, comparison, tuning, reports. Every number that hfx prints of a model comes from here.

`results/` is the file that all parts meet through; `measuring.py` puts a load to a server and gives one Run of it.
"""

if not __name__.startswith("hfx."):  # by the link at the top of the checkout: all classes would exist twice
    raise ImportError("This package is hfx.perf. Import it by that name.")
