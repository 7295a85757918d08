"""hfx's own load generator: an asyncio gRPC client in a separate process.

`generate` puts a load on a served model, and returns the log of its requests. `stats.run_of` computes a Run from the
log of any tool.
"""
