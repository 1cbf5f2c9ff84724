"""What tests of the command line share: a home, real processes, and a small program in the place of a model."""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from factories import candidate, problem
from support.kept import stocked

from rag_kernels import cli, wiring
from rag_kernels.archive.bundle import import_bundle
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.store import FileArchive
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.retrieval.starter import BUNDLE

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = [str(Path(sys.executable).with_name("rag-kernels"))]

# The same with a judge that leaves torch.compile out: it takes longer than everything else together.
QUICK = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from cli_home import quick_limits
from rag_kernels import cli, wiring
wiring.Limits = quick_limits
cli.main()
"""
QUICK_PROGRAM = [sys.executable, "-c", QUICK]
RELU = problem(shape=(256, 1024))
RIGHT = candidate(RELU).source
SLOW = RIGHT.replace("#pragma omp parallel for\n", "").replace("variant 0", "one thread")
WRONG = RIGHT.replace("* f;", "* f + 1.0f;")

# Reads a prompt and answers as a model would: ideas, or the next of the sources beside it.
MODEL = """
import fcntl, json, pathlib, sys
prompt, here = sys.stdin.read(), pathlib.Path(__file__).parent
if "numbered list" in prompt:
    print("1. One fused loop over all threads.\\n2. One plain loop.")
else:
    with open(here / "count", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = len(file.read())
        file.write("x")
    sources = json.loads((here / "sources.json").read_text())
    print("Idea: the next one\\n```cpp\\n" + sources[min(number, len(sources) - 1)] + "```")
"""


# What takes most of a confirmation; `test_judge_checks.py` and `test_honest.py` are about it, what commands do is not.
LEFT_OUT = frozenset({"repeats", "sanitizers", "odd shapes"})


def quick_limits(*, left_out: frozenset[str] = LEFT_OUT, **given: Any) -> Limits:
    """Return the limits of a judge that times briefly, and eager alone, and leaves out what takes long."""
    timing = TimingRule(pairs=8, max_pairs=8, timed_s=0.05, warm_pairs=3, self_pairs=7)
    limits = Limits(**given)
    return replace(limits, measure_compile=False, timing=timing, without=limits.without | left_out)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Stdout as `--json` promises it: an object a line, and nothing else."""
        return [json.loads(line) for line in self.out.splitlines()]


def environment(home: Path, **more: str) -> dict[str, str]:
    """A home with an archive of its own, and the cache that all tests share."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAG_KERNELS_", "OPENAI_", "XDG_"))}
    places = {"HOME": str(home), "RAG_KERNELS_CACHE": os.environ["RAG_KERNELS_CACHE"], "RAG_KERNELS_DEVICE": "cpu"}
    return {**kept, **places, **more}


def run(home: Path, *arguments: str | Path, program: list[str] = PROGRAM, **env: str) -> Done:
    done = subprocess.run(
        [*program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=home,
        env=environment(home, **env),
        timeout=280,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def inside(
    home: Path, *arguments: str | Path, quick: bool = False, sizes: bool = False, compiled: bool = False, **env: str
) -> Done:
    """Run a command in this process: the same as `run` without loading everything anew, for commands that end by
    themselves and start no other program in their place. `quick` is `QUICK_PROGRAM`'s judge, with `sizes` one that
    tries others than the problem's. `compiled` is one that does so too, and races torch.compile by the usual clock.
    """
    out, err, wanted = io.StringIO(), io.StringIO(), environment(home, **env)
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        left_out = LEFT_OUT - {"odd shapes"} if sizes or compiled else LEFT_OUT
        if quick:
            patch.setattr(wiring, "Limits", partial(quick_limits, left_out=left_out))
        elif compiled:
            patch.setattr(wiring, "Limits", partial(Limits, without=left_out))
        for name in os.environ.keys() - wanted.keys():
            patch.delenv(name)
        for name, value in wanted.items():
            patch.setenv(name, value)
        patch.setattr(cli, "COMMAND", Event())  # others of this process have DuckDB make data frames
        patch.chdir(home)
        patch.setattr(sys, "argv", ["rag-kernels", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    for number, handler in kept.items():
        signal.signal(number, handler)
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


# One round without exemplars: before a model sees one, it is judged on this machine, which takes its time.
BRIEF = ("--effort", "1", "--retrieval", "off")


def model(folder: Path, *sources: str) -> str:
    """A model name (`cmd:...`) that answers with these sources, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(MODEL)
    (folder / "sources.json").write_text(json.dumps(sources))
    return f"cmd:{sys.executable} {folder / 'model.py'}"


def stocked_archive(root: Path) -> Path:
    """Make an archive that has what a new one is stocked with, which takes a command four seconds by itself."""
    stocked(FileArchive(root), load_embedder())
    return root


@functools.cache
def starter_kernels() -> int:
    """How many kernels a new archive is stocked with."""
    return import_bundle(MemoryArchive(), BUNDLE)["kernels"]
