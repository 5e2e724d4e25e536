"""Reports over the ledger: what was asked for, at what latency and cost, and how it ended."""
