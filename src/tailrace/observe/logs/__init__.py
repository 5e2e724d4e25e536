"""Log lines: as text or JSON, without secrets or anybody's prompts, written by a thread that may be slow."""
