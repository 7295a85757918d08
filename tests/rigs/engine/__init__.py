"""The engine: toys that a reader can work out, its invariants, an oracle."""
