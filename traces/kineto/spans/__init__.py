"""Host and device spans out of a profiler's events: nesting, launches, shapes, threads, and impossible data.

`spans.read_tables` makes the tables of one rank. `external_ids.py` says which op made a call, and `launches.py` which call
launched a kernel.
"""
