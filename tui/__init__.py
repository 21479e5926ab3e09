"""The `trace` command line. `cli` has the commands and exit codes, `options` the options, and `errors` the one-line errors."""
