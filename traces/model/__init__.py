"""Defines the data model of a trace: tables, machines and runs, and the rules that every trace must satisfy.

`trace.py` defines `Trace` and its tables (steps, phases, host spans, device spans, memory...). `machine.py`, `run.py` and
`workload.py` describe where and how the rows were recorded. `invariants.fault` finds inconsistent tables. The remaining modules
are helpers for columns and JSON.
"""
