"""`--values compute`: ops run on payloads that are kept on the CPU."""
