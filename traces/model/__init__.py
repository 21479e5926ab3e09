"""Defines the data model of a trace: its tables, its header, and the rules that every valid trace satisfies.

`trace.py` defines the class `Trace` and its tables of steps, phases, host spans, device spans and memory events. `machine.py`,
`run.py` and `workload.py` define the header of a trace. `invariants.fault` finds inconsistent tables.
"""
