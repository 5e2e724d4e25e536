"""Paged KV blocks: reference counts, the prefix tree, and who holds what."""
