"""Routes by the API they belong to."""
