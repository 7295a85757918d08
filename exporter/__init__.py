"""Checkpoint -> graph -> files -> verified -> published. `pipeline.py` is the list of steps."""
