"""Code that runs in a process of its own, where some packages cannot be imported and nothing was built before.

Each is a fork of one that has imported torch and nothing of ours: that takes seconds. Names of files are asked anew in
each, as are modules that torch does not bring.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LIMIT_S = 200
PARENT = """
import json, os, signal, sys, traceback
import torch, torch._dynamo
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        signal.alarm(asked["limit_s"])
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            os.dup2(os.open(asked["files"][number - 1], os.O_WRONLY | os.O_CREAT), number)
        sys.stdin = open(os.devnull)
        os.environ.update(asked["env"])
        sys.path[:0] = asked["paths"]
        sys.modules.update(dict.fromkeys(asked["hidden"]))
        code = 0
        try:
            exec(compile(asked["code"], "<alone>", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


def alone(code: str, *paths: Path, hidden: Sequence[str] = ("rag_kernels",)) -> str:
    """Run code where the hidden packages cannot be imported; return what it printed."""
    parent = _parent()
    assert parent.stdin is not None and parent.stdout is not None
    with tempfile.TemporaryDirectory() as built:
        files = [Path(built) / name for name in ("stdout", "stderr")]
        env = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "TORCH_EXTENSIONS_DIR": built,
            "RAG_KERNELS_CACHE": built,
        }
        asked = {"code": code, "paths": [str(path) for path in paths], "hidden": list(hidden), "env": env}
        print(json.dumps(asked | {"files": list(map(str, files)), "limit_s": LIMIT_S}), file=parent.stdin, flush=True)
        ended = parent.stdout.readline().strip()
        printed, errors = (file.read_text(errors="replace") for file in files)
    assert ended == "0", f"{ended}: {errors}"
    return printed


@functools.cache
def _parent() -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    made = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    atexit.register(made.kill)
    return made
