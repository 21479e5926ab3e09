"""Makes the self-contained HTML page of `trace report` and the matplotlib figures of `trace plot`.

`page.report_html` builds the page and `charts.py` its SVG charts. `plots.py` needs matplotlib, which is an optional dependency.
"""
