"""Tests that `trace report` writes a complete page about one or two traces, without external files."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tests.traces.handmade import phase_grained, replay_of, training
from tests.tui.goldens import assert_golden
from tests.tui.view.scenes import crowd
from traces.format.trace_file import save
from traces.kineto import read_kineto
from traces.model.trace import DeviceSpans, Trace
from tui.cli import run
from tui.report.page import report_html, report_of
from tui.report.plots import NamedTrace

_VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that HTML elements are closed in the right order, and collects the page's text and references."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.elements: list[str] = []
        self.references: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.references += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def pages() -> list[tuple[str, str]]:
    recorded = training(steps=6, jitter_us=(0, 3, 1))
    replayed = replay_of(recorded, 1.02, lag_ns_per_step=100, missing=[{"op": "aten::foo", "shapes": "2,2", "count": 3}])
    kernel = recorded.strings.texts.index("volta_sgemm_nn")
    recorded.strings.texts[kernel] = "<script>alert(1)</script>\x1b[31m&\ud800"
    return [
        ("one", report_html([NamedTrace("v100", recorded)])),
        ("replay", report_html([NamedTrace("v100", recorded), NamedTrace("this & that", replayed)])),
        ("recordings", report_html([NamedTrace("a", recorded), NamedTrace("b", training(kernel_us=14))])),
        ("phases", report_html([NamedTrace("a", phase_grained()), NamedTrace("b", phase_grained(4))])),
        ("empty", report_html([NamedTrace("a", Trace()), NamedTrace("b", Trace())])),
    ]


@pytest.mark.parametrize(("name", "text"), pages(), ids=lambda value: value if len(value) < 20 else "")
def test_a_report_page_refers_to_no_external_files(name: str, text: str) -> None:
    page = Page(text)
    assert not page.references and not {"script", "link", "img", "iframe"} & set(page.elements)
    assert not re.search(r"https?:|@import|url\(|alert\(1\)</script>", text)
    assert not re.search("[\x00-\x08\x0b-\x1f\ud800-\udfff]", text)
    assert "prefers-color-scheme:dark" in text and "@media print" in text
    assert text.count("<svg") >= {"one": 4, "replay": 5, "recordings": 4, "phases": 2, "empty": 0}[name]


@pytest.mark.parametrize("name", ["one", "replay", "recordings", "phases"])
def test_the_report_page_matches_the_golden_file(name: str) -> None:
    body = re.sub("<style>.*?</style>", "", dict(pages())[name], flags=re.DOTALL)
    begins = "section|h1|h2|p|li|div|tr|rect|text|circle|path|line|figcaption"
    assert_golden(f"report_{name}", re.sub(f"(<(?:{begins})[ >])", r"\n\1", body))


def test_the_report_page_has_the_expected_texts() -> None:
    said = {name: " ".join(" ".join(Page(text).words).split()) for name, text in pages()}
    assert "PASS: " in said["replay"] and "Same program" in said["replay"] and "this & that" in said["replay"]
    for words in ("Not in the recording", "aten::foo", "waiting for data", "Origin", "Critical path"):
        assert words in said["replay"]
    assert "<script>alert(1)</script>" in said["one"]  # the name is shown as text, not as an HTML element
    assert "Kernels that differ" in said["recordings"] and "NOT JUDGED" in said["empty"]


def test_a_kernel_of_two_ops_has_a_row_for_each_op_with_the_op_in_its_name() -> None:
    """GIVEN forward and backward convolutions with the same kernel WHEN the kernel of the second trace is faster in the
    forward pass and slower in the backward pass THEN each of the kernel's two rows names its op."""
    a, b = training(), training()
    for trace in (a, b):
        trace.device.name[3::5] = trace.device.name[1]
    b.device.duration_ns[1::5] -= 4_000
    b.device.duration_ns[3::5] += 4_000
    words = Page(report_html([NamedTrace("a", a), NamedTrace("b", b)])).words
    shown = {word.partition(": ")[0]: words[at + 1] for at, word in enumerate(words) if ": volta_sgemm_nn" in word}
    assert shown == {"convolution": "shorter", "ConvolutionBackward0": "longer"}


def test_the_report_command_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(training(), Path("t.msgpack"))
    assert run("report t.msgpack -o r.html".split()) == 0
    assert re.fullmatch(r"trace: wrote r\.html \(\d+\.\d KiB\)\n", capfd.readouterr().err)
    assert Page(Path("r.html").read_text(encoding="utf-8")).words
    assert run("report t.msgpack -o r.pdf".split()) == 2
    assert "the file name must end in .html or .htm" in capfd.readouterr().err and not Path("r.pdf").exists()


def test_the_report_of_a_real_recording_is_a_small_file(shared_traces: Path) -> None:
    trace = read_kineto(shared_traces / "v100_ddp_memory_rank1of2.json.gz")
    text = report_html([NamedTrace("v100", trace)])
    assert len(text) < 200_000 and "Limit: device memory" in text
    Page(text)


def test_a_report_of_many_ranks_shows_one_rank_for_all_similar_ranks() -> None:
    """GIVEN twelve ranks WHEN rank 5 launches twice as many kernels as the others THEN the page shows only ranks 0 and 5."""
    trace = crowd(devices=12, streams=2)
    mine = trace.device.take(trace.device.device == 5)
    trace = replace(trace, device=DeviceSpans.concatenated([trace.device, mine]))
    words = " ".join(Page(report_of([("many.msgpack", trace)])).words)
    assert "All figures are those of ranks 0, 5. Ranks 1-4, 6-11 are omitted, because they are similar to rank 0." in words
    assert "rank 0 cuda:0" in words and "rank 5 cuda:0" in words and "rank 1 cuda:0" not in words
    # AND two traces are compared by rank if they have the same ranks
    words = " ".join(Page(report_of([("many.msgpack", trace), ("other.msgpack", trace)])).words)
    assert "Ranks 1-4, 6-11 are omitted" in words
    words = " ".join(Page(report_of([("many.msgpack", trace), ("other.msgpack", training())])).words)
    assert "omitted" not in words


def test_a_report_shows_ranks_that_stand_out_in_either_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """GIVEN twelve ranks WHEN rank 7 does other work in the second trace THEN the page shows rank 7."""
    trace = crowd(devices=12, streams=2)
    of_7 = np.flatnonzero(trace.device.device == 7)
    fewer = trace.device.take(np.delete(np.arange(len(trace.device)), of_7[::2]))
    named = [("a.msgpack", trace), ("b.msgpack", replace(trace, device=fewer))]
    for pair in (named, named[::-1]):
        words = " ".join(Page(report_of(pair)).words)
        assert "All figures are those of ranks 0, 7. Ranks 1-6, 8-11 are omitted" in words
    # AND with --all-ranks, no rank is omitted
    monkeypatch.chdir(tmp_path)
    save(trace, Path("a.msgpack"))
    for option, is_whole in (("", False), (" --all-ranks", True)):
        assert run(f"report a.msgpack -o r.html{option}".split()) == 0
        words = " ".join(Page(Path("r.html").read_text(encoding="utf-8")).words)
        assert ("rank 3 cuda:0" in words) == is_whole and ("omitted" in words) != is_whole
    capfd.readouterr()
