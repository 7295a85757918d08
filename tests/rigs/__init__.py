"""Helpers that several tests share; see README.md."""
