"""Measuring served models: load generation, comparison, tuning, reports.

`measuring.py` puts one load on a server and returns a Run. `results.py` defines Run and the result file, which
comparison, tuning and reports read and write.
"""

if not __name__.startswith("hfx."):  # by the link at the top of the checkout: all classes would exist twice
    raise ImportError("This package is hfx.perf. Import it by that name.")
