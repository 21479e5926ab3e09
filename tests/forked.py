"""Runs programs in forks of the test process. `python -c` would be slower, because importing torch takes seconds."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from contextlib import redirect_stdout


def printed_in_fork(program: str, *words: str) -> str:
    """Run a program with arguments, and return what it prints. The program cannot change the test process. Raise AssertionError
    with the traceback if the program fails."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about a fork of a process with threads
        child = os.fork()
    if not child:
        status, printed, leave = 1, io.StringIO(), os._exit  # the program may replace os._exit
        with os.fdopen(writer, "w") as out:
            try:
                sys.argv = ["-c", *words]
                if (torch := sys.modules.get("torch")) is not None:
                    torch.set_num_threads(1)  # a fork does not have the threads of OpenMP, so OpenMP would wait for ever
                with redirect_stdout(printed):
                    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
                status = 0
            except BaseException:
                traceback.print_exc(file=printed)
            out.write(printed.getvalue())
        leave(status)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    assert os.waitpid(child, 0)[1] == 0, text
    return text
