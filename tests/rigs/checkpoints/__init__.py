"""Checkpoints, published models made of them, and what answers as they must."""
