"""The `trace` command line."""
