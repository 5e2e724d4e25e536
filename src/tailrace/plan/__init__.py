"""What would happen: recorded traffic through the real serving plane and the real scheduler, on a clock of its own.

traces (what arrives) -> workload (requests with hidden answers) -> clients (who send, wait and obey) -> the real
Pipeline, EngineBackend, Scheduler and KvManager -> engine, steps (a step takes the time that the cost model says) ->
summary, table, plots. Imports engine, backends and control; knows no HTTP.
"""
