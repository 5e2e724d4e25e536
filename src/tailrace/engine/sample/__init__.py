"""Sampling: parameters per slot, noise keys, token histories."""
