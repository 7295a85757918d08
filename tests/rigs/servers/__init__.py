"""Servers: real ones as processes, parts of servers in this process, and models for them."""
