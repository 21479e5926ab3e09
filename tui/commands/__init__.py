"""What each command does, one per file. Imported only when it runs: these need numpy, `trace --help` does not."""
