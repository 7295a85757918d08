"""The export of an encoder: the traced graph of a BERT and its kin, the folders of its ensemble, and its gate."""
