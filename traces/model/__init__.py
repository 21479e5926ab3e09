"""Defines the data model of a trace: its tables, its header, and the rules that every valid trace satisfies.

`trace.py` defines the class `Trace` and its tables of steps, phases, host spans, device spans and memory events. `machine.py`,
`run.py` and `workload.py` define the header, which describes the machine, the run and the training script. `invariants.fault`
finds inconsistent tables.
"""
