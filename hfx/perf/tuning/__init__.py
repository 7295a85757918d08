"""Searching for the settings of a published model on the real server, and proving what they gain."""
