"""Batch scoring: files in, files out, with the same bytes after any kill and on any number of machines.

A job is a folder. Its state is the set of part files that exist. Any process may score a missing part: an answer
depends only on its own row, so scoring a part again gives the same bytes.

    OUT/
        job.json            the model, inputs and settings, which decide the answers; written once
        plan.jsonl          one line per chunk: its file, place, rows and hash; written once
        parts/000000.csv    the answers of a chunk, renamed into place when complete
        log.jsonl           events of the runs, for people to read
        lock                held by the runner on this machine
        predictions.csv     all parts in order, written with summary.json once no part is missing
"""
