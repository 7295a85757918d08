"""Comparing devices, servers, precisions or settings of a model under the same load."""
