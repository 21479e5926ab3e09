"""Runs pytest tests on a virtual GPU. Without `--gpu`, the plugin does nothing.

    pytest --gpu a100 tests/                    # the virtual CUDA device exists before tests are collected

    @pytest.mark.gpu("t4", memory="8GiB")       # this test runs on another virtual GPU
    def test_step(gpu):                         # trace_replay.gpu_fixture.GpuChecks
        train()
        gpu.assert_fits("6GiB")

Note [Tests on other GPUs]
    A process has one virtual GPU at a time. Tests with a marker run after all other tests, grouped by marker. Tensors that a
    test module creates at import raise an error in tests on another GPU.

Note [Refused calls]
    A CUDA call that is not emulated raises NotEmulated. A test with a call that is not emulated is skipped, or fails with
    `--gpu-strict`, even if the test catches the error. If a fixture makes the call after the test, the teardown is reported as
    skipped or failed, because pytest has already reported the test.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Required, TypedDict, cast

import pytest

if TYPE_CHECKING:
    from trace_replay.gpu_fixture import GpuChecks
    from trace_replay.virtual_gpu import ClockName, Values

_SESSION = pytest.StashKey["GpuSession"]()
_ASSERTED = "device-side assert"
_PROPERTY = "virtual GPU"  # name of the report property with the problems of a test


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu", "virtual GPU (trace-replay)")
    group.addoption("--gpu", metavar="NAME", default="", help="Run the tests on this virtual GPU, or on this recording's GPU.")
    group.addoption(
        "--gpu-values",
        choices=("compute", "recorded", "constant"),
        default="compute",
        help="The values of tensors on the GPU: computed on the CPU (default), recorded or constant.",
    )
    group.addoption("--gpus", type=int, default=0, metavar="N", help="The number of virtual GPUs.")
    group.addoption("--gpu-memory", default="", metavar="SIZE", help="The memory of each virtual GPU, such as 8GiB.")
    group.addoption("--gpu-strict", action="store_true", help="Fail tests that call unsupported functions.")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the virtual GPU before the test modules are imported, because they may call `torch.cuda.is_available`."""
    options = early_config.known_args_namespace
    session = early_config.stash[_SESSION] = GpuSession(_requested(options))
    if session.requested and not _only_distributes(options):
        session.use(session.requested)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        'gpu(name, **options): run on this virtual GPU; the options are those of trace_replay.start, such as memory="8GiB"',
    )
    if _SESSION not in config.stash:  # the plugin was registered after the call of `pytest_load_initial_conftests`
        config.stash[_SESSION] = GpuSession(_requested(config.option))


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # see Note [Tests on other GPUs]
    items.sort(key=lambda item: repr(_of_marker(item) or ""))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    session = item.config.stash[_SESSION]
    session.refused.clear()
    try:
        session.use(_of_marker(item) or session.requested)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    session = item.config.stash[_SESSION]
    if call.excinfo is not None and session.gpu is not None:
        session.gpu.hide_own_frames(call.excinfo.value)
        call.excinfo = pytest.ExceptionInfo.from_exception(call.excinfo.value)
    report = yield
    if session.gpu is None:
        return report
    if session.refused:
        reason = session.refused[0]
        report.user_properties.append((_PROPERTY, session.refused[0]))
        if item.config.getoption("--gpu-strict"):
            report.outcome, report.longrepr = "failed", f"--gpu-strict: {item.nodeid}: {reason}"
        else:
            path, line, _ = item.reportinfo()
            report.outcome, report.longrepr = "skipped", (str(path), (line or 0) + 1, f"Skipped: {reason}")
        session.refused.clear()
    if call.excinfo is not None and _ASSERTED in str(call.excinfo.value):
        report.user_properties.append((_PROPERTY, "a device-side assert was raised; the GPU was reset after the test"))
        session.restart()
    if call.when == "call" and (count := session.new_values_not_computed()):
        report.user_properties.append((_PROPERTY, f"{count} values were read but not computed; use --gpu-values compute"))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    tests: dict[str, list[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if name == _PROPERTY and report.nodeid not in tests.setdefault(text, []):
                    tests[text].append(report.nodeid)
    if tests:
        terminalreporter.section("virtual GPU")
    for text, nodes in tests.items():
        terminalreporter.line(f"{text} [{_listed(nodes)}]")


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> GpuChecks:
    started = request.config.stash[_SESSION].gpu
    if started is None:
        pytest.skip("the fixture gpu needs --gpu NAME or @pytest.mark.gpu(NAME)")
    from trace_replay.gpu_fixture import GpuChecks

    checks = GpuChecks(started)
    request.addfinalizer(checks.close)
    return checks


class StartOptions(TypedDict, total=False):
    what: Required[str]
    values: Values
    clock: ClockName
    gpus: int
    memory: str
    speed: float
    strict: bool


class GpuSession:
    """Starts and stops virtual GPUs during a pytest session, and collects unsupported CUDA calls."""

    def __init__(self, requested: StartOptions | None) -> None:
        self.requested = requested
        self.gpu: Any = None
        self._used: StartOptions | None = None
        self.refused: list[str] = []  # unsupported CUDA calls in the current test
        self._not_computed = 0

    def use(self, wanted: StartOptions | None) -> None:
        if wanted == self._used:
            return
        self.stop()
        if wanted is not None:
            from trace_replay import traces, virtual_gpu

            self._not_computed = 0
            try:
                self.gpu = virtual_gpu.start(**wanted)
            except (traces.TraceError, ValueError) as error:
                raise pytest.UsageError(f"virtual GPU: {error}") from None
            self.gpu.on_refusal(self.refused.append)
            self._used = wanted

    def restart(self) -> None:
        wanted = self._used
        self.stop()
        self.use(wanted)

    def stop(self) -> None:
        if self.gpu is not None:
            self.gpu.stop()
        self.gpu = self._used = None

    def new_values_not_computed(self) -> int:
        before, self._not_computed = self._not_computed, self.gpu.values_not_computed() if self.gpu is not None else 0
        return max(self._not_computed - before, 0)


def _requested(options: Any) -> StartOptions | None:
    if not getattr(options, "gpu", ""):
        return None
    return {"what": options.gpu, "values": options.gpu_values, "gpus": options.gpus, "memory": options.gpu_memory}


def _of_marker(item: pytest.Item) -> StartOptions | None:
    marker = item.get_closest_marker("gpu")
    if marker is None or not (marker.args and isinstance(marker.args[0], str)):
        return None
    known = [name for name in StartOptions.__annotations__ if name != "what"]
    if marker.kwargs.keys() - set(known) or len(marker.args) > 1:
        raise pytest.UsageError(f"{item.nodeid}: `@pytest.mark.gpu` takes only a GPU's name and the options {', '.join(known)}")
    options = {"what": marker.args[0], "values": item.config.getoption("--gpu-values"), **marker.kwargs}
    return cast(StartOptions, options)


def _only_distributes(options: Any) -> bool:
    """Return True in the controller process of pytest-xdist, which runs no tests."""
    distributes = getattr(options, "numprocesses", None) or getattr(options, "tx", None)
    return "PYTEST_XDIST_WORKER" not in os.environ and bool(distributes)


def _listed(tests: list[str]) -> str:
    more = len(tests) - 3
    return ", ".join(tests[:3]) + (f" and {more} other tests" if more > 0 else "")
