"""Checkpoints, models published from them, and references for their answers."""
