"""Speculative decoding without loss: guessing tokens, and keeping those that would have been sampled anyway."""
