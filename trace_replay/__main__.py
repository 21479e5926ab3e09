"""`python -m trace_replay` is the `trace` command."""

from trace_replay import main

main()
