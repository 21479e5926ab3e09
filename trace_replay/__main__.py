"""Runs the `trace` command for `python -m trace_replay`."""

from trace_replay import main

main()
