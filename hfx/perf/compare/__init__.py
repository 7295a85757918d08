"""Several ways to serve a model, measured in turn under the same load and held against each other."""
