"""The Python API: `LLM` for many prompts at once, `AsyncEngine` inside a program of one's own. See docs/python-api.md.

The same engine, checks and results as behind HTTP, without the serving plane: no queue policy, tenants or limits.
"""
