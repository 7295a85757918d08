"""The peers of generation, one file each: how a checkpoint is converted for it, and how it is run at its best.

A file has `convert(model, folder, fetched, precision)` where there is something to convert, and `open_way` of the same
arguments, which answers the cases of bench/generation_cases.py with the number of new tokens a row. Each is called in a
process of its own; `fetched` are the peer's packages, seen by that process alone.
"""
