"""Tailrace: an LLM engine for CPUs, and the serving plane around it. Parts load when used; importing this is free."""
