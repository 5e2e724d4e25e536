"""Limits of tenants and keys, as holds: reserved at the door, settled at the end, exact under concurrency."""
