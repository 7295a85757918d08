"""The export of a generator: engine folders of a GPT-2, Llama, BART or T5, how it decodes, and its gate."""
