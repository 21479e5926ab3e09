"""Removes control characters from names in recordings. A terminal or a browser would interpret them.

    escape("<b>\\x1b[31m")  # "&lt;b&gt;\\ufffd", for HTML and SVG
"""

from __future__ import annotations

import html
import re

# terminal styles, control characters except tab and newline, and characters that change the text direction
OBEYED = re.compile("\x1b\\[\\d*m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape(text: str) -> str:
    return html.escape(OBEYED.sub("\ufffd", text).encode("utf-8", "replace").decode("utf-8"))
