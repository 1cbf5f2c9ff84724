"""A program that answers on its standard output, and that never outlives who asked.

Comes in: a command and a text. Goes out: what it wrote, and its exit code. It ends, with all that it started, when it
has answered, when its time is up, and when this process ends, however that comes about. Knows nothing of models.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

# Becomes the program, after it has left a watcher in its process group: that reads from a pipe whose other end only the
# asking process holds, and kills the group when the pipe ends. Not even kill -9 of the asker leaves a program behind.
GUARD = """
import os, signal, sys
pipe = int(sys.argv[1])
if os.fork() == 0:
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        os.read(pipe, 1)
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
os.wait()
os.close(pipe)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


def run_program(command: Sequence[str], text: str, *, timeout_s: float) -> tuple[int, bytes, bytes]:
    """Run a program with a text on its standard input; return its exit code, output and error output.

    Raises OSError where there is no such program, and subprocess.TimeoutExpired.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"there is no program {command[0]!r}")
    theirs, ours = os.pipe()
    pipe = subprocess.PIPE
    guard = [sys.executable, "-I", "-S", "-c", GUARD, str(theirs), *command]
    try:
        process = subprocess.Popen(
            guard, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, pass_fds=(theirs,)
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    end = partial(_end_group, process)
    atexit.register(end)  # Ctrl-C ends the main thread; the branch that waits here does not see it
    try:
        out, err = process.communicate(text.encode(), timeout=timeout_s)
    finally:
        atexit.unregister(end)
        end()
        os.close(ours)
    return process.returncode, out, err


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the program with all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
