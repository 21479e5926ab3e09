"""Tests the page of `trace report` in a real browser: loaded files, layout, colours and printing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.traces.handmade import replay_of, training
from tui.report.page import report_html
from tui.report.plots import NamedTrace

pytestmark = pytest.mark.slow

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# This script runs in a copy of the page, because the page itself has no scripts. It finds elements that are wider than the
# window and outside of a scrolling box, charts without a size, texts that a chart cuts off, and loaded files.
_LOOK = """<script>onload=()=>{
const all=[...document.querySelectorAll("main *")],width=document.documentElement.clientWidth;
const out=(e)=>!e.closest(".scroll,figure")&&e.getBoundingClientRect().right>width+1;
const cut=(t)=>{const a=t.getBoundingClientRect(),b=t.ownerSVGElement.getBoundingClientRect();
return a.left<b.left-1||a.right>b.right+1||a.top<b.top-1||a.bottom>b.bottom+1};
document.body.innerHTML="<pre id=told>"+JSON.stringify({width,charts:document.querySelectorAll("svg").length,
wide:all.filter(out).map(e=>e.tagName+": "+e.textContent.slice(0,40)),
empty:[...document.querySelectorAll("svg")].filter(e=>e.getBoundingClientRect().height<20).length,
cut:[...document.querySelectorAll("svg text")].filter(cut).map(e=>e.textContent),
thin:[...document.querySelectorAll("td.left")].filter(e=>e.getBoundingClientRect().width<100).length,
fetched:performance.getEntriesByType("resource").map(e=>e.name),
background:getComputedStyle(document.body).backgroundColor,colour:getComputedStyle(document.body).color
}).replaceAll("&","&amp;").replaceAll("<","&lt;")+"</pre>"}</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser here ({', '.join(_BROWSERS)}); Debian has one: apt-get install chromium")
    return found


@pytest.fixture(scope="module", params=["one", "two"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recorded = training(steps=6)
    sides = [NamedTrace("recorded.msgpack", recorded)]
    if request.param == "two":
        sides.append(NamedTrace("replayed <b>&.msgpack", replay_of(recorded)))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_html(sides), encoding="utf-8")
    return path


def ran(browser: str, folder: Path, *words: str) -> str:
    """Return what the browser prints. The browser uses a new profile and no network."""
    own = [f"--user-data-dir={folder / 'profile'}", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    offline = ["--proxy-server=127.0.0.1:9", "--virtual-time-budget=3000"]
    done = subprocess.run([browser, *own, *offline, *words], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def looked(browser: str, page: Path, folder: Path, width: int, dark: bool = False) -> dict[str, Any]:
    copy = folder / "copy.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{_LOOK}</body>"), encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    dom = ran(browser, folder, f"--window-size={width},2000", scheme, "--dump-dom", copy.as_uri())
    result = re.search(r'<pre id="told">(.*?)</pre>', dom, re.S)
    assert result is not None, dom[-2000:]
    found: dict[str, Any] = json.loads(unescape(result[1]))
    return found


@pytest.mark.parametrize("width", [500, 900, 1600])
def test_the_report_fits_the_browser_window_and_needs_no_network(browser: str, page: Path, tmp_path: Path, width: int) -> None:
    found = looked(browser, page, tmp_path, width)
    assert found["width"] == width
    assert found["charts"] >= 3 and not found["empty"]
    assert found["wide"] == [] and found["cut"] == [] and found["thin"] == 0
    assert found["fetched"] == []


def test_the_report_follows_the_dark_mode_setting_of_the_browser(browser: str, page: Path, tmp_path: Path) -> None:
    light, dark = (looked(browser, page, tmp_path, 900, dark=dark) for dark in (False, True))
    brightness = [[sum(map(int, re.findall(r"\d+", of[part]))) for part in ("background", "colour")] for of in (light, dark)]
    assert brightness[0][0] > 600 > 200 > brightness[0][1]
    assert brightness[1][0] < 200 < 600 < brightness[1][1]


def test_a_browser_can_print_the_report_as_pdf(browser: str, page: Path, tmp_path: Path) -> None:
    ran(browser, tmp_path, f"--print-to-pdf={tmp_path / 'x.pdf'}", "--no-pdf-header-footer", page.as_uri())
    printed = (tmp_path / "x.pdf").read_bytes()
    assert printed.startswith(b"%PDF") and 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8
