"""Transports to whatever generates tokens, all behind the contract of `base`."""
