"""Where model files live: found by name or path, pulled, verified, written whole or not at all."""
