"""Values that the host reads from the device: recorded values, assumed values, and data-dependent result sizes."""
