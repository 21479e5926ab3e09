"""Defines the data model of a trace: its tables, its header, and its consistency rules. `trace.py` defines the class `Trace`
and its tables. `machine.py`, `run.py` and `workload.py` define the header of a trace. `invariants.fault` finds inconsistent
tables."""
