"""`tailrace top`: a running server, looked at from the terminal."""
