"""Makes the HTML page of `trace report` and the charts of `trace plot`."""
