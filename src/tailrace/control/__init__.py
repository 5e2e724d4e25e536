"""The serving plane: who may run, who waits, who is refused. Knows no HTTP and no tensor."""
