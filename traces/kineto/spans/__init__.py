"""Builds tables of CPU and GPU events. `spans.read_tables` builds the tables of one rank. `external_ids.py` finds the op that
made a CUDA runtime call. `launches.py` finds the runtime call that launched a kernel."""
