"""What is known about requests: the record of each, and the metrics that derive from it. Decides nothing."""
