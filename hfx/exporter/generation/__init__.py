"""The export of a generator (GPT-2, Llama, BART, T5 and others): engine folders, decoding settings and the gate."""
