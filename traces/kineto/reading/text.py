"""Parses the JSON text of a recording into events, even if the text is damaged.

    problems = Counter()
    document = parse(b'{"traceEvents": [{"ph": "X"}, {"ph": "M"', problems, "cut.json")
    document.events  # [{"ph": "X"}]
    problems         # Counter({"truncated-json": 1})

The parser orjson rejects truncated files, the number `inf`, and unescaped quotes in names. If orjson fails, the importer parses
the events one by one and repairs damaged events.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from traces.format.unpack_limit import TooLarge, UnpackLimit, size_text
from traces.kineto.reading.eras import exact_digits
from traces.kineto.reading.pieces import Digest, parse_in_pieces
from traces.model.trace import TraceImportError
from traces.names.profiler_json import ProfilerJson

GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_CHUNK_BYTES = 1 << 16
_WINDOW_CHARS = 1 << 16
BYTES_PER_CHARACTER = 2  # each character of compressed JSON counts as two bytes towards UnpackLimit

_CONTENT = re.compile(rb"[^ \t\r\n\0]")
_EVENTS_KEY = re.compile(r'"traceEvents"\s*:\s*\[')
_EVENTS_KEY_BYTES = re.compile(rb'"traceEvents"\s*:\s*\[')
# the end of an object and the start of the next object, without a comma between them
_JOINT = re.compile(rb'\}\s*(?=\{\s*"\w+"\s*:)')
_DECODER = json.JSONDecoder()
_FACT = re.compile(
    r'(?<=[{,\s])"(schemaVersion|deviceProperties|computeProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds|traceName'
    r"|trace_id|record_shapes|profile_memory|with_stack|with_flops|with_modules|traceReplay"
    r'|(?:cupti|cuda_runtime|cuda_driver|roctracer|rocprofiler\w*|hip_runtime|hip_driver|host)_(?:version|name))"\s*:\s*'
)
_AFTER_VALUE = re.compile(r"\s*[,}]")
_LOG = re.compile(r'"(?:INFO|WARNING|ERROR)"\s*:\s*\[')
_KEYS = r'(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args)"\s*:)'
_NEXT_OBJECT = re.compile(r"\}\s*,\s*(?=\{)")
_NEXT_EVENT = re.compile(r"\}\s*,\s*" + _KEYS)
_LAST_EVENT = re.compile(r'\}\s*(?=,?\s*\]\s*(?:\}|,\s*"|$))')
_EVENT_START = re.compile(_KEYS)
_SEPARATORS = re.compile(r"[\s,]*")
# a string with possibly wrong escapes, a number that JSON does not allow, or a comma before a closing bracket
_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>(?<=[\s:,\[])-?(?:nan|inf(?:inity)?|n/a)(?=[\s,\]}]))|(?P<comma>,(?=\s*[\]}]))',
    re.IGNORECASE | re.DOTALL,
)
# the parts of a string that may need repair
_IN_STRING = re.compile(
    r'(?P<good>\\["\\/bfnrt]|\\u(?!d[89a-f])[0-9a-f]{4}|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})'
    r"|(?P<half>\\ud[89a-f][0-9a-f]{2})|(?P<escape>\\)|(?P<control>[\x00-\x1f])",
    re.IGNORECASE,
)
_NAME_WITH_QUOTES = re.compile(r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|id|args)"\s*:)', re.DOTALL)
_INNER_QUOTE = re.compile(r'(?<!\\)"')


@dataclass
class Document:
    events: list[Any]
    header: ProfilerJson = field(default_factory=dict)
    exact_ns: bool = False
    bare: bool = False


def read_bytes(path: Path, problems: Counter[str]) -> bytes:
    """Read a file and decompress gzip content. Raises TraceImportError if the file cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        advice = "give a .json or .json.gz file exported by torch.profiler"
        raise TraceImportError(f"{path}: cannot be read: {error.strerror}; {advice}") from error
    try:
        return decompressed(data, problems)
    except TooLarge as error:
        raise TraceImportError(f"{path}: {error}") from error


def decompressed(data: bytes, problems: Counter[str]) -> bytes:
    """Decompress gzip data, up to the first damaged byte. Raises TooLarge if the result needs too much memory."""
    if not data.startswith(GZIP_MAGIC):
        return data
    limit = UnpackLimit.of(len(data))
    pieces: list[bytes] = []
    size_bytes = 0
    while data.startswith(GZIP_MAGIC):
        member = zlib.decompressobj(wbits=31)
        for begin in range(0, len(data), _CHUNK_BYTES):
            chunk = data[begin : begin + _CHUNK_BYTES]
            before = member.copy()
            try:
                pieces.append(member.decompress(chunk))
                size_bytes += len(pieces[-1])
                limit.check(BYTES_PER_CHARACTER * size_bytes, f"JSON of {size_text(size_bytes)} or more")
            except zlib.error:
                problems["damaged-gzip"] += 1
                pieces += _salvaged(before, chunk)
                return b"".join(pieces)
            if member.eof:
                data = member.unused_data + data[begin + _CHUNK_BYTES :]
                break
        else:
            problems["truncated-gzip"] += 1
            break
    return b"".join(pieces)


def _salvaged(member: zlib._Decompress, chunk: bytes) -> list[bytes]:
    pieces: list[bytes] = []
    for position in range(len(chunk)):
        try:
            pieces.append(member.decompress(chunk[position : position + 1]))
        except zlib.error:
            break
    return pieces


def parse_all(data: bytes, problems: Counter[str], name: str, digest: Digest = list) -> Iterator[Document]:
    try:
        yield parse(data, problems, name, digest, mend=False)
    except orjson.JSONDecodeError:
        texts = _concatenated(data)
        distinct = list(dict.fromkeys(text.strip() for text in texts))
        if copies := len(texts) - len(distinct):
            problems["repeated-recording"] += copies
        if len(distinct) > 1:
            problems["concatenated-files"] += len(distinct) - 1
        for text in distinct:
            yield parse(text, problems, name, digest)


def _concatenated(data: bytes) -> list[bytes]:
    ends = [match.end() for match in _JOINT.finditer(data)]
    texts = [data[begin:end] for begin, end in pairwise([0, *ends, len(data)])]
    whole: list[bytes] = []
    for text in texts:
        if whole and (not _EVENTS_KEY_BYTES.search(text) or not _EVENTS_KEY_BYTES.search(whole[-1])):
            whole[-1] += text
        else:
            whole.append(text)
    return whole


def parse(data: bytes, problems: Counter[str], name: str, digest: Digest = list, *, mend: bool = True) -> Document:
    """Parse one recording, and call `digest` with its events, part by part. With `mend`, repair invalid JSON; otherwise raise
    JSONDecodeError. Raises TraceImportError if the text contains no list of events."""
    found = Counter(problems)
    if data.startswith(_BOM):
        data = data[len(_BOM) :]
        problems["byte-order-mark"] += 1
    if not _CONTENT.search(data):
        raise TraceImportError(f"{name} is empty; record again or give another file")
    digits = exact_digits(data)
    data = data if digits is None else digits
    try:
        early, content = parse_in_pieces(data, digest)
    except orjson.JSONDecodeError:
        if not mend:
            problems.clear()
            problems.update(found)
            raise
        document = _scan(_decoded(data, problems), digits is not None, problems, name)
        document.events = digest(document.events)
        return document
    if isinstance(content, list):
        return Document(early + digest(content), exact_ns=digits is not None, bare=True)
    events = content.pop("traceEvents", None) if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise TraceImportError(f"{name} has no list `traceEvents`; give a trace that torch.profiler exported")
    return Document(early + digest(events), content, exact_ns=digits is not None)


def _decoded(data: bytes, problems: Counter[str]) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
        problems["invalid-utf8"] += text.count("\ufffd") - data.count("\ufffd".encode())
        return text


def _scan(text: str, exact_ns: bool, problems: Counter[str], name: str) -> Document:
    found = _EVENTS_KEY.search(text)
    bare = found is None and text.lstrip().startswith("[")
    if found is None and not bare:
        raise TraceImportError(f"{name} is not JSON with `traceEvents`; give a trace that torch.profiler exported")
    begin = found.end() if found else text.index("[") + 1
    events, end, closed = _scan_events(text, begin, problems)
    header: ProfilerJson = {}
    if found:
        header = _scan_header(text[: found.start()].rstrip().rstrip(",") + "}", problems)
        if closed:
            rest = text[end:].strip().lstrip(",").strip()
            if not rest.endswith("}"):
                problems["truncated-json"] += 1
                rest += "}"
            header |= _scan_header("{" + rest, problems)
    if not events and not header:
        raise TraceImportError(f"{name} contains no readable events; record again or give another file")
    return Document(events, header, exact_ns=exact_ns, bare=bare)


def _scan_header(text: str, problems: Counter[str]) -> ProfilerJson:
    try:
        header = orjson.loads(_repaired(text, problems))
    except orjson.JSONDecodeError:
        return _scan_facts(text, problems)
    return header if isinstance(header, dict) else {}


def _scan_facts(text: str, problems: Counter[str]) -> ProfilerJson:
    """Read the header of a profiler file. Until July 2026, Kineto wrote log messages into the header without escaping
    quotes."""
    facts: ProfilerJson = {}
    for match in _FACT.finditer(text):
        try:
            value, end = _DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue
        if _AFTER_VALUE.match(text, end) and _is_fact(match[1], value):
            facts.setdefault(match[1], value)
    problems["damaged-log" if facts and _LOG.search(text) else "unreadable-header"] += 1
    return facts


def _is_fact(key: str, value: Any) -> bool:
    if key.endswith("Properties"):
        return isinstance(value, list) and all(isinstance(one, dict) for one in value)
    return isinstance(value, dict) if key == "distributedInfo" else isinstance(value, int | float | str)


def _scan_events(text: str, begin: int, problems: Counter[str]) -> tuple[list[ProfilerJson], int, bool]:
    events: list[ProfilerJson] = []
    position = begin
    while True:
        gap = _SEPARATORS.match(text, position)
        position = gap.end() if gap else position
        if position >= len(text):
            problems["truncated-json"] += 1
            return events, position, False
        if text[position] == "]":
            if gap and "," in gap.group():
                problems["trailing-comma"] += 1
            return events, position + 1, True
        event: ProfilerJson | None
        try:
            event, position = _scan_whole(text, position)
        except (ValueError, RecursionError):
            event, position = _scan_damaged(text, position, problems)
        if event is not None:
            events.append(event)


def _scan_whole(text: str, position: int) -> tuple[ProfilerJson, int]:
    if text[position] != "{":
        raise ValueError
    following = _NEXT_OBJECT.search(text, position)
    end = following.start() + 1 if following else len(text)
    try:
        return dict(orjson.loads(text[position:end])), end
    except orjson.JSONDecodeError:
        window = text[position : max(end, position + _WINDOW_CHARS)]
        end = position + json.JSONDecoder().raw_decode(window)[1]
        return dict(orjson.loads(text[position:end])), end


def _scan_damaged(text: str, position: int, problems: Counter[str]) -> tuple[ProfilerJson | None, int]:
    if text[position] != "{":
        problems["unreadable-event"] += 1
        start = _EVENT_START.search(text, position)
        return None, start.start() if start else len(text)
    end = _NEXT_EVENT.search(text, position + 1) or _LAST_EVENT.search(text, position + 1)
    if end is None:
        return None, len(text)
    piece = text[position : end.start() + 1]
    found: Counter[str] = Counter()
    quoted = _NAME_WITH_QUOTES.sub(lambda m: m[1] + _INNER_QUOTE.sub(r'\\"', m[2]) + m[3], piece, count=1)
    for candidate, kinds in ((piece, []), (quoted, ["unescaped-quote"])):
        found = Counter(kinds)
        try:
            event = orjson.loads(_repaired(candidate, found))
        except orjson.JSONDecodeError:
            continue
        if isinstance(event, dict):
            problems.update(found)
            return event, end.start() + 1
    problems["unreadable-event"] += 1
    return None, end.start() + 1


def _repaired(text: str, problems: Counter[str]) -> str:
    def mend(match: re.Match[str]) -> str:
        if match.lastgroup == "number":
            problems["non-finite-number"] += 1
            return "null"
        if match.lastgroup == "comma":
            problems["trailing-comma"] += 1
            return ""
        return _IN_STRING.sub(mend_character, match[0])

    def mend_character(match: re.Match[str]) -> str:
        if match.lastgroup == "good":
            return match[0]
        if match.lastgroup == "half":
            problems["half-character"] += 1
            return "\\ufffd"
        if match.lastgroup == "escape":
            problems["invalid-escape"] += 1
            return "\\\\"
        problems["control-character"] += 1
        return f"\\u{ord(match[0]):04x}"

    return _TOKEN.sub(mend, text)
