"""Helpers of the engine tests: toy models with predictable tokens, invariants, and a reference search."""
