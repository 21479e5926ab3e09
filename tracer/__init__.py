"""Records GPU training in the script's process."""
