"""Batch scoring: files in, files out, the same bytes after any kill and on any number of machines.

A job is a folder whose state is which part files exist. Any process may score a missing part, as an answer depends on
nothing but its own row: computing a part twice gives the same bytes.

    OUT/
        job.json            what shapes the answers; written once
        plan.jsonl          a line a chunk: its file, place, rows, hash; written once
        parts/000000.csv    the answers of a chunk; renamed into place when they are on the disk
        log.jsonl           chunks done, for people
        lock                held by the runner of this machine
        predictions.csv     all parts, in order, and summary.json: when no part is missing
"""
