"""What commands that run a script print on stderr beside the script's own output: progress, and how the run ended."""
