"""The command line as users meet it: help, bad usage, and the commands that need no run of `generate`."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import cli_home
import pytest
from cli_home import RIGHT, Done, environment, run, starter_kernels
from factories import linear_problem
from typer.testing import CliRunner

from rag_kernels.cli import app, expected, main
from rag_kernels.cli.functionalize import functional_text
from rag_kernels.cli.shared.grouped_help import GROUPS
from rag_kernels.cli.shared.settings import Settings
from rag_kernels.eval.judge import JUDGE_VERSION
from rag_kernels.eval.machine.device import gpu_name

COMMANDS = [
    *(
        [c]
        for c in (
            "generate",
            "check",
            "functionalize",
            "eval",
            "search",
            "grow",
            "replay",
            "report",
            "sample",
            "capture",
        )
    ),
    ["app"],
    ["doctor"],
    ["archive"],
    *(["archive", c] for c in ("stats", "show", "export", "import", "reindex", "verify", "reverify", "retract")),
    ["archive", "serve"],
]
Inside = Callable[..., Done]


@pytest.fixture
def inside(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """The same as `run` within this process: for what ends before any work is done, many times over."""
    monkeypatch.chdir(home)
    for name, value in environment(home).items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["rag-kernels", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Done(int(end.value.code or 0), captured.out, captured.err)

    return call


# Help and documentation


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0 and f"Example: rag-kernels {command[0]}" in done.output
    if command != ["archive"]:
        assert "--json" in done.output


def test_settings_are_few() -> None:
    assert len(Settings.model_fields) < 12


def test_the_short_option_and_the_groups(home: Path) -> None:
    short, long = (CliRunner().invoke(app, [option]).output for option in ("-h", "--help"))
    assert short == long and "--install-completion" in short
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(app.registered_commands and [c.name for c in app.registered_commands] + ["archive"])
    assert all(f"{title}:" in short for title in GROUPS) and "More:" not in short


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("rag-kernels ver", {"verify"}),
        ("rag-kernels generate --prec", {"--precision"}),
        ("rag-kernels export abc --as hf", {"hf-kernels"}),
    ],
)
def test_a_shell_completes_commands_options_and_their_values(home: Path, typed: str, offered: set[str]) -> None:
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    assert set(run(home, **asked, _RAG_KERNELS_COMPLETE="complete_bash").out.split()) == offered


def test_the_version_names_the_judge_and_torch(home: Path) -> None:
    said = run(home, "--version").out
    assert said.startswith("rag-kernels ") and f"judge {JUDGE_VERSION}" in said and f"torch {version('torch')}" in said
    here = Path(__file__).parents[1]
    asked = ["git", "-C", str(here), "rev-parse", "--short=7", "HEAD"]
    if (here / ".git").exists():
        assert f"(commit {subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()}" in said


# Bad usage and input: exit code 2, a sentence, and nothing else


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "missing.py"], "no problem file missing.py"),
        (["generate", "broken.py"], "syntax error on line 1"),
        (["generate", "empty.py"], "does not define class Model"),
        (["generate", "relu.py", "--device", "tpu"], "for '--device': 'tpu' is not one of"),
        (["generate", "relu.py", "--out", "best.txt"], "must end in .py or .cpp"),
        (["generate", "relu.py", "--out", "nowhere/best.py"], "its folder does not exist"),
        (["generate", "relu.py", "--effort", "99"], "It should be less than or equal to 9"),
        (["generate", "relu.py", "--no-such-option"], "--no-such-option"),
        (["eval", "relu.py", "missing.cpp"], "no candidate file missing.cpp"),
        (["eval", "relu.py", "."], "it is a folder"),
        (["eval", "relu.py", "notes.txt"], "must end in .cpp, .cc"),
        (["eval", "relu.py", "kernel.cpp", "--device", "cuda"], "is cpu code, but --device says cuda"),
        (["search"], "Give words to look for, or --problem FILE"),
        (["grow", "relu.py", "--until", "noon"], "HH:MM"),
        (["grow", "nowhere"], "no problem files in nowhere"),
        (["functionalize", "missing.py"], "no problem file missing.py"),
        (["eval", "relu.py"], "Name a PROBLEM and a KERNEL"),
        (["eval", "relu.py", "--batch", "c.jsonl"], "brings its problems along"),
        (["eval", "--batch", "missing.jsonl"], "missing.jsonl cannot be read"),
        (["sample", "nowhere", "--out", "c.jsonl"], "no problem files in nowhere"),
        (["replay", "r_none", "--archive", ":memory:"], "no run 'r_none'"),
        (["report", "r_none", "--archive", ":memory:"], "no run 'r_none'"),
        (["report", "latest", "--out", "report.pdf"], "must end in .svg or .png"),
        (["archive", "show", "k_0000"], "no kernel 'k_0000'"),
        (["archive", "import", "missing.zip"], "There is no bundle missing.zip"),
        (["app", "--archive", ":memory:"], "must name a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_usage_is_a_sentence(home: Path, arguments: list[str], said: str, inside: Inside) -> None:
    (home / "broken.py").write_text("class Model(:\n")
    (home / "empty.py").write_text("x = 1\n")
    (home / "kernel.cpp").write_text(RIGHT)
    (home / "notes.txt").write_text("hello")
    done = inside(*arguments)
    text = " ".join((done.out + done.err).split())
    assert done.code == 2 and said in text and "Traceback" not in text


def test_with_json_an_error_is_an_object(home: Path) -> None:
    done = run(home, "generate", "missing.py", "--json")
    assert done.code == 2 and "missing.py" in done.rows[0]["error"] and "Error:" in done.err


def test_a_bad_setting_names_its_variable(home: Path) -> None:
    done = run(home, "generate", "relu.py", RAG_KERNELS_EFFORT="lots")
    assert done.code == 2 and "RAG_KERNELS_EFFORT" in done.err


def test_a_home_that_cannot_be_written_says_where_else_to_keep_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.delenv("RAG_KERNELS_CACHE", raising=False)
    for place in ("/nowhere", "/nowhere/.cache/rag-kernels", "/nowhere/.cache/rag-kernels/builds/x"):
        said = expected(OSError(errno.EROFS, "Read-only file system", place))
        assert "set RAG_KERNELS_CACHE to a folder that can be written" in said
    assert "RAG_KERNELS_CACHE" not in expected(OSError(errno.EACCES, "Permission denied", "/elsewhere/x"))


def test_debug_shows_the_traceback(home: Path) -> None:
    done = run(home, "--debug", "generate", "missing.py")
    assert "Traceback" in done.err and "ProblemError" in done.err


def test_a_damaged_archive_is_a_sentence(home: Path, tmp_path: Path) -> None:
    (tmp_path / "archive.duckdb").write_text("this is no database")
    done = run(home, "archive", "stats", "--archive", tmp_path)
    assert done.code == 2 and done.err.startswith("Error:") and "Traceback" not in done.err


# The other commands


def test_functionalize_gives_a_row_a_problem(home: Path) -> None:
    (home / "linear.py").write_text(linear_problem().problem.source)
    (home / "broken.py").write_text("class Model(:\n")
    done = cli_home.inside(home, "functionalize", "relu.py", "linear.py", "broken.py", "--json")
    assert done.code == 1 and [r["problem"] for r in done.rows] == ["relu", "linear", "broken"]
    relu, linear, broken = done.rows
    assert all({"problem", "ok", "reason", "graph_key", "seconds"} <= r.keys() for r in done.rows)
    assert relu["ok"] and linear["ok"] and "def module_fn(" in linear["source"]
    assert "def module_fn(" in functional_text(relu, brief=False) and "bytes_moved" in functional_text(
        relu, brief=False
    )
    assert not broken["ok"] and "syntax error" in broken["reason"] and broken["graph_key"] is None


def test_functionalize_takes_a_module_of_a_file(home: Path) -> None:
    (home / "mine.py").write_text(
        "import torch\nclass Scaled(torch.nn.Module):\n    def __init__(self, by):\n        super().__init__()\n"
        "        self.by = by\n    def forward(self, x, *, plus=None):\n        return x.add_(1) * self.by + plus\n"
    )
    given = ("--init", "by=2.5", "--inputs", "torch.ones(3, 4), plus=torch.ones(4)")
    done = cli_home.inside(home, "functionalize", "mine.py:Scaled", *given, "--json")
    (row,) = done.rows
    assert done.code == 0 and row["problem"] == "Scaled" and "def module_fn(" in row["source"], done.err
    assert row["mutated"] == ["input 0"]
    refused = cli_home.inside(home, "functionalize", "relu.py", *given)
    assert refused.code == 2 and "mymodel.py:Block" in refused.err


@pytest.mark.parametrize(("source", "code", "verdict"), [(RIGHT, 0, "passed"), ("int", 1, "build_failed")])
def test_eval(home: Path, tmp_path: Path, source: str, code: int, verdict: str) -> None:
    (tmp_path / "kernel.cpp").write_text(source)
    words = ("--archive", ":memory:", "--no-confirm", "--asm", "--json")
    done = cli_home.inside(home, "eval", "relu.py", tmp_path / "kernel.cpp", *words, quick=True)
    assert (done.code, done.rows[-1]["verdict"]) == (code, verdict), done.err
    assert ("ret" in done.rows[-1]["assembly"]) if verdict == "passed" else ("kernel.cpp:1:" in done.rows[-1]["log"])
    assert done.rows[-1]["writer"] == "import"


CUDA = """#include "rag_kernel.h"
__global__ void scaled(const float* x, float f, float* out, int64_t n) {
  const int64_t step = gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) out[i] = fmaxf(x[i], 0) * f;
}
void forward(rk::Tensor<const float> x, double factor, rk::Tensor<float> out) {
  scaled<<<256, 256, 0, (cudaStream_t)rk::stream(x)>>>(x.data, float(factor), out.data, x.numel());
}
RK_EXPORT(forward, forward)
"""


@pytest.mark.skipif(shutil.which("nvcc") is None or gpu_name() is not None, reason="needs nvcc and no GPU")
def test_without_a_gpu_cuda_is_compiled_and_never_verified(home: Path, tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(CUDA)
    done = cli_home.inside(home, "eval", "relu.py", tmp_path / "kernel.cu", "--archive", tmp_path / "archive", "--json")
    assert done.code == 1 and done.rows[-1]["verdict"] == "compiled" and done.rows[-1]["kernel_id"] is None
    stats = cli_home.inside(home, "archive", "stats", "--archive", tmp_path / "archive", "--json").rows[0]
    assert (stats["kernels"] - starter_kernels(), stats["verified"], stats["confirmed"]) == (1, 0, 0)


def test_doctor(home: Path) -> None:
    done = cli_home.inside(home, "doctor", "--json")
    checks = {row["check"]: row for row in done.rows}
    assert done.rows[-1]["check"] == "conclusion" and done.rows[-1]["detail"].startswith("Ready for CPU")
    assert done.rows[-1]["detail"].endswith("offline writer.")
    wanted = {
        "python",
        "torch",
        "c++",
        "ninja",
        "openmp",
        "nvcc",
        "gpu",
        "sandbox",
        "tvm-ffi",
        "embedder",
        "archive",
        "disk",
        "llm",
    }
    assert done.code == 0 and wanted <= checks.keys()
    assert all(row["ok"] or row["next_step"] for row in done.rows[:-1])
    assert not checks["llm"]["ok"] and "offline writer" in checks["llm"]["next_step"]


def test_doctor_says_what_is_missing(home: Path) -> None:
    done = run(home, "doctor", CXX="/nowhere/g++")
    assert done.code == 2 and "MISSING  openmp" in done.out
    assert done.out.splitlines()[-1].startswith("Not ready: ")
