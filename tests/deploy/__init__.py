"""What deploy/ holds, tried with the real programs where they are installed."""
