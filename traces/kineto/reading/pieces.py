"""A sound recording's text through orjson, piece by piece, so that no piece outlives the next.

    load(b'{"traceEvents": [{"ph": "X"}, {"ph": "M"}], "schemaVersion": 1}', digest)
    # ([], {"traceEvents": [{"ph": "X"}, {"ph": "M"}], "schemaVersion": 1}): too short for pieces

Note [Pieces]
    orjson first builds a document of its own, for a whole recording far larger than the processor's caches. So the
    text is cut where one event seems to end and another to begin, and read piece by piece; the last piece is read
    with all that is around the events. That takes two thirds of the time, if no piece outlives the next. Each must
    be JSON by itself, which it only is if no cut was within a string or an event, and what is before the events
    must open their list and nothing else. If not, or if the list's key comes twice, the whole is read at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

Digest = Callable[[list[Any]], list[Any]]  # from a piece of the list of events to what is kept of it

_PIECE_BYTES = 1 << 18  # orjson's document of it and its events together fit a processor's second cache
_EVENTS_OPEN = re.compile(rb'\A\s*\[|(?P<key>"traceEvents")\s*:\s*\[')
_CUT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args)"\s*:)')


def load(data: bytes, digest: Digest) -> tuple[list[Any], Any]:
    """The digests of a recording's early pieces, and what `orjson.loads` makes of it without those; see Note [Pieces].

    Raises orjson.JSONDecodeError.
    """
    opening = _EVENTS_OPEN.search(data)
    if opening is None:
        return [], orjson.loads(data)
    head, begin = data[: opening.end()], opening.end()
    early: list[Any] = []
    try:
        orjson.loads(head + (b"]}" if opening["key"] else b"]"))
        while cut := _CUT.search(data, begin + _PIECE_BYTES):
            early += digest(orjson.loads(b"[%b]" % data[begin : cut.start() + 1]))
            begin = cut.end()
        rest = data[begin:]
        content = orjson.loads(head + rest)
    except orjson.JSONDecodeError:
        return [], orjson.loads(data)
    if opening["key"] and b'"traceEvents"' in rest:
        return [], orjson.loads(data)
    return early, content
