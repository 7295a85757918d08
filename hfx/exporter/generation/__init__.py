"""Generators: a language model becomes an engine's folders, is verified, and is published as NAME and NAME_stream."""
