"""hfx turns a Hugging Face checkpoint into a Triton model repository that is proven to answer like the checkpoint."""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """Return `__version__`, looked up on first use, as importlib.metadata would double the time of `hfx --help`."""
    if name != "__version__":
        raise AttributeError(f"module 'hfx' has no attribute {name!r}")
    from importlib.metadata import version

    return version("hfx")
