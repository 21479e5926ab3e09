"""The data model of a trace: tables, machines, runs, and what must hold in every trace.

`trace.py` defines `Trace` and its tables (steps, phases, host spans, device spans, memory...). `machine.py`, `run.py` and
`workload.py` describe where and how the rows were recorded. `invariants.check` rejects a trace whose tables do not fit
together; the other modules are helpers on columns and JSON that everything above uses.
"""
