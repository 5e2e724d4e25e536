"""The load generator: what it sends, when, what it measures, and how that is shown.

Knows a server only by its URL, so it measures ours and others alike. Imports the shared nouns and nothing else of ours.

options -> probe (what can the server do) -> pieces, workload, arrivals (what to send, and when) -> drive, client
(send it) -> record (what happened to one request) -> summary, sweep (numbers) -> report, table, charts, compare.
"""
