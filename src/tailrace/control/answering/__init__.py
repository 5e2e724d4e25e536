"""From a body to its answer, whoever sent it and wherever the answer goes: HTTP's requests and the lines of jobs."""
