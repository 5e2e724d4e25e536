"""Architectures as declarations, and the catalogue of models that have a name."""
