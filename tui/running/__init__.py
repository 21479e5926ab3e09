"""Messages on stderr from commands that run a script: progress, and how the run ended."""
