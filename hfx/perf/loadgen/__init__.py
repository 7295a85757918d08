"""hfx's own load generator: gRPC from an event loop in a process of its own.

`generate` puts a load to a served model and returns the log of its requests; `stats.run_of` makes a Run of any log,
whichever tool wrote it.
"""
