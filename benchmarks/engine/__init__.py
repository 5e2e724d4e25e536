"""Benchmarks of the engine without HTTP."""
