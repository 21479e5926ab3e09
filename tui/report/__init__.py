"""Makes the HTML page of `trace report` and the matplotlib figures of `trace plot`."""
