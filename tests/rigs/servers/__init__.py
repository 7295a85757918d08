"""Servers: real ones as processes, parts of them in this process, and models for them."""
