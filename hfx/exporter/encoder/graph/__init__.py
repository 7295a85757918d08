"""The graph of an encoder: traced from the torch model, cleaned, and rewritten with the operators of a runtime."""
