"""The last step of an encoder model: from the net's outputs to the answers of its task."""
