"""Several ways to serve a model, measured in turn under the same load and held against each other.

`side.py` is one of them, opened when its turn comes; devices, precisions, variants and peers make the sides of a
command's options, `comparison.py` measures them, `files.py` joins result files. Nothing here prints.
"""
