"""Builds host and device spans from a profiler's events: nesting, launches, shapes, threads, and checks for impossible data.

`spans.read_tables` builds the tables of one rank. `external_ids.py` finds the op that made a call, and `launches.py` finds the
call that launched a kernel.
"""
