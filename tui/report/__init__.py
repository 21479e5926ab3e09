"""Output of `trace report` (a self-contained HTML page) and `trace plot` (figures by matplotlib).

`page.report_html` builds the page and `charts.py` its SVG charts. `plots.py` needs matplotlib, which is an optional dependency.
"""
