"""Builds tables of CPU and GPU events. `external_ids.py` finds the op that made a CUDA runtime call, and `launches.py` finds
the runtime call that launched a kernel."""
