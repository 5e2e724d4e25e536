"""Measurements of the serving plane: live servers with real weights, and simulations beside them."""
