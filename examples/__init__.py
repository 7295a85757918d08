"""Runnable examples; `make demo` runs them."""
