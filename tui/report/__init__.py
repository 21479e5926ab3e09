"""`trace report` and `trace plot`: a self-contained HTML page, and figures by matplotlib.

`page.report` builds the page and `charts.py` its SVG charts. `plots.py` needs matplotlib, which is an optional dependency.
"""
