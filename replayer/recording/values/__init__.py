"""Values that the host reads from the device: recorded ones, assumed ones, and sizes of results that depend on values."""
