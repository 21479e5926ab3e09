"""Shows the timeline app during a replay. The app shows the script's output, and prints this output to the terminal when the
app closes. The script's stdin is empty, because the app reads the keyboard."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import Popen

from traces.model.trace import Trace
from traces.script.launch import ChildResult, exit_code, run_child
from tui.view.app import ViewApp
from tui.view.live import Live
from tui.view.script_output import ScriptOutput, no_input


def can_view() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def run_with_view(
    options_of_package: Mapping[str, object], words: Sequence[str], ranks: int, recorded: Trace, name: str, folder: Path
) -> ChildResult:
    live = Live((name, recorded), folder)
    failures: list[Exception] = []
    stdin = no_input()
    try:
        with ScriptOutput.of_terminal() as output:

            def show(child: Popen[bytes]) -> None:
                live.pid = child.pid
                app = ViewApp(live.stages(), live=live, output=output)
                threading.Thread(target=_tell_when_done, args=(child, live, app), daemon=True).start()
                app.run()
                if app.failure is not None:
                    failures.append(app.failure)
                output.release()
                if live.returncode is None:
                    print("trace: the replay continues without the view; Ctrl-C stops it", file=sys.stderr)

            result = run_child(
                options_of_package, words, ranks=ranks, stdin=stdin, stdout=output.stdout, stderr=output.stderr, meanwhile=show
            )
    finally:
        if stdin is not None:
            os.close(stdin)
    if failures and not result.returncode:
        raise failures[0]
    return result


def _tell_when_done(child: Popen[bytes], live: Live, app: ViewApp) -> None:
    code = child.wait()
    live.finish(exit_code(code))
    if -code in (signal.SIGTERM, signal.SIGHUP):
        app.call_later(app.exit, 0)
