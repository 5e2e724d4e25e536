"""Tailrace: an LLM engine for CPUs and the serving plane around it. Importing it costs nothing; parts load when used."""
