"""Implements ops that move, read or compute tensor values. The module `host_reads` reads tensor values on the host. The module
`data_dependent` runs ops whose output shapes depend on values."""
