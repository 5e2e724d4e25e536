"""Tenants and keys as an operator changes them while servers run, and the log of it."""
