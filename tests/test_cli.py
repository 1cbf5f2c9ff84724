"""The command line as users meet it: real processes, the real judge, a small program in the place of a model."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from factories import attempt, candidate, linear_problem, problem, wrong
from rich.console import Console
from typer.testing import CliRunner

from archive.bundle import import_bundle
from archive.memory import MemoryArchive
from eval.device import gpu_name
from rag_kernels.cli import app, main
from rag_kernels.cli.functionalize import functional_text
from rag_kernels.report import attempt_line, attempts_table, summary
from rag_kernels.rows import attempt_row, result_row
from rag_kernels.settings import Settings
from rag_kernels.starter import BUNDLE

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = [str(Path(sys.executable).with_name("rag-kernels"))]

# The same with a judge that leaves torch.compile out: it takes longer than everything else together.
QUICK = """
from functools import partial
from eval.limits import Limits
from rag_kernels import api, cli
api.open_judge = partial(api.open_judge, limits=Limits(measure_compile=False, timed_s=0.1))
cli.main()
"""
QUICK_PROGRAM = [sys.executable, "-c", QUICK]
COMMANDS = [
    *([c] for c in ("generate", "check", "functionalize", "eval", "search", "grow", "replay", "report", "sample")),
    ["app"], ["doctor"], ["archive"],
    *(["archive", c] for c in ("stats", "show", "export", "import", "reindex", "verify", "reverify", "retract")),
    ["archive", "serve"],
]  # fmt: skip

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


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Stdout as `--json` promises it: an object a line, and nothing else."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's home, shared by this file so that builds and baselines are cached as they are for users."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "relu.py").write_text(RELU.problem.source)
    return folder


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAG_KERNELS_", "OPENAI_", "XDG_"))}
    places = {"HOME": str(home), "RAG_KERNELS_CACHE": str(home / "cache"), "RAG_KERNELS_DEVICE": "cpu"}
    return {**kept, **places, **more}


def run(home: Path, *arguments: str | Path, program: list[str] = PROGRAM, **env: str) -> Done:
    done = subprocess.run(
        [*program, *map(str, arguments)], capture_output=True, text=True, cwd=home, env=environment(home, **env),
        timeout=280, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


Inside = Callable[..., Done]
# One round without exemplars: before a model sees one, it is judged on this machine, which takes its time.
BRIEF = ("--effort", "1", "--retrieval", "off")


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


def model(folder: Path, *sources: str) -> str:
    """A model name (`cmd:...`) that answers with these sources, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(MODEL)
    (folder / "sources.json").write_text(json.dumps(sources))
    return f"cmd:{sys.executable} {folder / 'model.py'}"


@pytest.fixture(scope="module")
def generated(home: Path) -> Done:
    """One real run: two candidates of one round, the winner confirmed and written to best.py."""
    name = model(home / "model", WRONG, RIGHT)
    return run(home, "generate", "relu.py", "--model", name, *BRIEF, "--out", "best.py", "--json")


# Help and documentation


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0 and f"Example: rag-kernels {command[0]}" in done.output
    if command != ["archive"]:
        assert "--json" in done.output


def test_the_documentation_is_what_the_help_says() -> None:
    spec = importlib.util.spec_from_file_location("make_cli", ROOT / "docs" / "make_cli.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.PAGE.read_text() == made.cli_page(), "run `python docs/make_cli.py`"


def test_settings_are_few() -> None:
    assert len(Settings.model_fields) < 12


# Bad usage and input: exit code 2, a sentence, and nothing else


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "missing.py"], "no problem file missing.py"),
        (["generate", "broken.py"], "syntax error on line 1"),
        (["generate", "empty.py"], "does not define class Model"),
        (["generate", "relu.py", "--device", "tpu"], "tpu"),
        (["generate", "relu.py", "--out", "best.txt"], "must end in .py or .cpp"),
        (["generate", "relu.py", "--out", "nowhere/best.py"], "its folder does not exist"),
        (["generate", "relu.py", "--effort", "99"], "less than or equal to 9"),
        (["generate", "relu.py", "--no-such-option"], "--no-such-option"),
        (["eval", "relu.py", "missing.cpp"], "no candidate file missing.cpp"),
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
        (["archive", "import", "missing.zip"], "missing.zip"),
        (["app", "--archive", ":memory:"], "must name a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_usage_is_a_sentence(home: Path, arguments: list[str], said: str, inside: Inside) -> None:
    (home / "broken.py").write_text("class Model(:\n")
    (home / "empty.py").write_text("x = 1\n")
    (home / "kernel.cpp").write_text(RIGHT)
    done = inside(*arguments)
    text = " ".join((done.out + done.err).split())
    assert done.code == 2 and said in text and "Traceback" not in text


def test_with_json_an_error_is_an_object(home: Path) -> None:
    done = run(home, "generate", "missing.py", "--json")
    assert done.code == 2 and "missing.py" in done.rows[0]["error"] and "Error:" in done.err


def test_a_bad_setting_names_its_variable(home: Path) -> None:
    done = run(home, "generate", "relu.py", RAG_KERNELS_EFFORT="lots")
    assert done.code == 2 and "RAG_KERNELS_EFFORT" in done.err


def test_debug_shows_the_traceback(home: Path) -> None:
    done = run(home, "--debug", "generate", "missing.py")
    assert "Traceback" in done.err and "ProblemError" in done.err


def test_a_damaged_archive_is_a_sentence(home: Path, tmp_path: Path) -> None:
    (tmp_path / "archive.duckdb").write_text("this is no database")
    done = run(home, "archive", "stats", "--archive", tmp_path)
    assert done.code == 2 and done.err.startswith("Error:") and "Traceback" not in done.err


# The main job


def test_generate_ends_with_the_promised_object(generated: Done) -> None:
    assert generated.code == 0, generated.err
    *attempts, result = generated.rows
    promised = {
        "kernel_id", "verdict", "label", "tier", "writer", "device", "speedup_eager", "speedup_compile",
        "floor_fraction", "exemplars", "attempts", "seconds", "cost_usd", "out",
    }  # fmt: skip
    assert promised <= result.keys() and result["type"] == "result"
    assert (result["verdict"], result["tier"], result["writer"], result["device"]) == ("passed", "kernel", "llm", "cpu")
    assert result["confirmed"] is True and result["attempts"] == 2 and result["out"] == "best.py"
    assert result["speedup_eager"] > 0 and 0 < result["floor_fraction"] < 2
    assert sorted(a["verdict"] for a in attempts) == ["passed", "passed", "wrong"]
    assert all(a["type"] == "attempt" and a["run_id"] == result["run_id"] for a in attempts)


def test_the_module_it_wrote_computes_the_same_and_falls_back(generated: Done, home: Path) -> None:
    text = (home / "best.py").read_text()
    assert generated.rows[-1]["kernel_id"] in text.splitlines()[0]
    code = """
import torch, warnings, best
old, new, x = best.Model(2.0), best.ModelNew(2.0), best.get_inputs()[0]
with torch.no_grad():
    torch.testing.assert_close(new(x), old(x))
    assert torch.equal(best.COMPILED(new, [x]), new(x))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert torch.equal(new(x[:3]), old(x[:3]))
    assert "other inputs" in str(seen[0].message)
other = best.ModelNew(5.0)
torch.testing.assert_close(other(x), best.Model(5.0)(x))
leaf = x.clone().requires_grad_()
new(leaf).sum().backward()
assert leaf.grad is not None
print("same")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=home, env=environment(home), timeout=120
    )
    assert done.stdout == "same\n", done.stderr


def test_a_resumed_run_judges_nothing_again(generated: Done, home: Path) -> None:
    name = model(home / "again", SLOW)
    done = run(home, "generate", "relu.py", "--model", name, *BRIEF, "--resume", "latest", "--json")
    [result] = done.rows
    assert done.code == 0 and result["run_id"] == generated.rows[-1]["run_id"]
    assert result["kernel_id"] == generated.rows[-1]["kernel_id"] and result["attempts"] == 2


def test_without_a_verified_kernel_the_code_is_one(home: Path) -> None:
    arguments = ("generate", "relu.py", "--model", model(home / "bad", WRONG), *BRIEF, "--archive", ":memory:")
    done = run(home, *arguments, "--out", "none.cpp", program=QUICK_PROGRAM)
    assert done.code == 1 and "\x1b" not in done.out and not (home / "none.cpp").exists()
    assert "  1  wrong" in done.out and "No verified kernel (1 candidate in" in done.out


def test_a_plain_summary() -> None:
    text = summary(result_row([attempt(cost_usd=0.5)], run_id="run1", problem="p", out="best.py"))
    assert "confirmed in a fresh process" in text and "2.00x eager, 1.60x torch.compile, 50 % of" in text
    assert "$0.5000" in text and text.endswith("written to best.py")
    assert attempt_line(attempt_row(attempt(verdict=wrong()))).startswith("  1  wrong")


def test_a_live_table_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=90)
    with attempts_table(console, "relu [1]") as show:
        show(attempt())
        show(attempt(number=2, verdict=wrong()))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b" in text and "relu [1]" in text and "2.00x" in text and "output 0 diff" in text


def start(home: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    """A run that Ctrl-C reaches, also where the tests themselves run in the background (a shell ignores it there)."""
    return subprocess.Popen(
        [*QUICK_PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home,
        env=environment(home), start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def first_row(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    row: dict[str, Any] = json.loads(process.stdout.readline())
    return row


def test_killed_then_resumed_then_interrupted(home: Path, tmp_path: Path) -> None:
    name = model(tmp_path / "m", RIGHT, SLOW)
    arguments = ("generate", "relu.py", "--model", name, *BRIEF, "--archive", tmp_path / "archive", "--json")
    process = start(home, *arguments)
    first = first_row(process)
    process.kill()
    process.communicate()

    (tmp_path / "m" / "count").unlink()  # the model says the same again
    process = start(home, *arguments, "--resume", "latest")
    second = first_row(process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    result = json.loads(out.splitlines()[-1])
    assert process.returncode == 130 and f"--resume {result['run_id']}" in err and "Traceback" not in err
    assert first["run_id"] == second["run_id"] == result["run_id"]
    assert first["kernel_id"] != second["kernel_id"] and (first["attempt"], second["attempt"]) == (1, 2)
    assert result["verdict"] == "passed" and result["attempts"] == 2


def starter_kernels() -> int:
    """How many kernels a new archive is stocked with."""
    return import_bundle(MemoryArchive(), BUNDLE)["kernels"]


def test_two_generates_at_once(home: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    processes = []
    for number, source in enumerate((RIGHT, SLOW)):
        name = model(tmp_path / f"m{number}", source)
        arguments = ("generate", "relu.py", "--model", name, *BRIEF, "--archive", archive, "--json")
        processes.append(start(home, *arguments))
    ends = [p.communicate(timeout=200) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], [err for _, err in ends]
    stats = run(home, "archive", "stats", "--archive", archive, "--json").rows[0]
    assert (stats["confirmed"], stats["runs"], stats["embeddings"] - starter_kernels()) == (2, 2, 2)


# The other commands


def test_functionalize_gives_a_row_a_problem(home: Path) -> None:
    (home / "linear.py").write_text(linear_problem().problem.source)
    (home / "broken.py").write_text("class Model(:\n")
    done = run(home, "functionalize", "relu.py", "linear.py", "broken.py", "--json")
    assert done.code == 1 and [r["problem"] for r in done.rows] == ["relu", "linear", "broken"]
    relu, linear, broken = done.rows
    assert all({"problem", "ok", "reason", "graph_key", "seconds"} <= r.keys() for r in done.rows)
    assert relu["ok"] and linear["ok"] and "def module_fn(" in linear["source"]
    assert "def module_fn(" in functional_text(relu, brief=False) and "bytes_moved" in functional_text(
        relu, brief=False
    )
    assert not broken["ok"] and "syntax error" in broken["reason"] and broken["graph_key"] is None


@pytest.mark.parametrize(("source", "code", "verdict"), [(RIGHT, 0, "passed"), ("int", 1, "build_failed")])
def test_eval(home: Path, tmp_path: Path, source: str, code: int, verdict: str) -> None:
    (tmp_path / "kernel.cpp").write_text(source)
    done = run(
        home,
        "eval",
        "relu.py",
        tmp_path / "kernel.cpp",
        "--archive",
        ":memory:",
        "--no-confirm",
        "--json",
        program=QUICK_PROGRAM,
    )
    assert (done.code, done.rows[-1]["verdict"]) == (code, verdict), done.err
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
    done = run(home, "eval", "relu.py", tmp_path / "kernel.cu", "--archive", tmp_path / "archive", "--json")
    assert done.code == 1 and done.rows[-1]["verdict"] == "compiled" and done.rows[-1]["kernel_id"] is None
    stats = run(home, "archive", "stats", "--archive", tmp_path / "archive", "--json").rows[0]
    assert (stats["kernels"] - starter_kernels(), stats["verified"], stats["confirmed"]) == (1, 0, 0)


def test_what_generate_kept_is_found_shown_and_handed_on(generated: Done, home: Path) -> None:
    kernel_id = generated.rows[-1]["kernel_id"]
    stats = run(home, "archive", "stats", "--json").rows[0]
    assert stats["kernels"] >= 1 and stats["llm_calls"] >= 3
    [shown] = run(home, "archive", "show", kernel_id[:10], "--json").rows
    assert shown["kernel_id"] == kernel_id and shown["source"] == RIGHT and shown["trust"] == "confirmed"
    assert kernel_id in {r["kernel_id"] for r in run(home, "search", "relu times a factor", "--json").rows}
    [same, *_] = run(home, "search", "--problem", "relu.py", "--json").rows
    explained = run(home, "search", "--optimise", kernel_id, "--explain").out
    assert kernel_id not in explained and "remedy" in explained and "= relevance x all weights" in explained
    assert same["problem"] == "relu" and "same graph" in same["reasons"]
    assert run(home, "archive", "verify", "--json").rows == [{"ok": True, "wrong": []}]
    assert run(home, "archive", "export", "kernels.zip", "--json").rows[0]["kernels"] == 1
    here = run(home, "archive", "reverify", kernel_id, "--device", "cpu")
    assert (here.code, here.out) == (0, "0 kernels: all up to date.\n")
    other = ("--archive", home / "other")
    assert run(home, "archive", "import", "kernels.zip", *other, "--json").rows[0]["kernels"] >= 1
    assert run(home, "archive", "reindex", *other, "--json").rows[0] == {"indexed": 1, "embedded": 0}
    assert run(home, "archive", "show", kernel_id, *other, "--json").rows[0]["trust"] == "claimed"
    assert run(home, "archive", "retract", kernel_id, "--why", "for a test", *other).code == 0
    assert run(home, "archive", "show", kernel_id, *other, "--json").rows[0]["retracted"] == "for a test"


def test_grow_and_resume(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / "1_relu.py").write_text(RELU.problem.source)
    (folder / "2_broken.py").write_text("class Model(:\n")
    arguments = ("grow", folder, "--model", model(tmp_path / "m", RIGHT), *BRIEF, "--archive", tmp_path / "a")
    done = run(home, *arguments, "--json", program=QUICK_PROGRAM)
    problems = [r for r in done.rows if r["type"] == "problem"]
    assert done.code == 0, done.err
    assert {(r["problem"], r["state"]) for r in problems} == {("1_relu", "done"), ("2_broken", "failed")}
    [page] = (tmp_path / "a" / "reports").glob("*.html")
    assert "1 problem of 1 got a better kernel" in page.read_text()
    assert done.rows[-1] == {"type": "summary", "problems": 2, "done": 2, "verified": 1}
    again = run(home, *arguments, "--resume", program=QUICK_PROGRAM)
    assert again.code == 0 and "skipped" in again.out and "1 of 2 problems" in again.out


def test_doctor(home: Path) -> None:
    done = run(home, "doctor", "--json")
    checks = {row["check"]: row for row in done.rows}
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
    assert all(row["ok"] or row["next_step"] for row in done.rows)
    assert not checks["llm"]["ok"] and "offline writer" in checks["llm"]["next_step"]


def test_doctor_says_what_is_missing(home: Path) -> None:
    done = run(home, "doctor", CXX="/nowhere/g++")
    assert done.code == 2 and "MISSING  openmp" in done.out


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    yield number


def test_app_serves_the_explorer(generated: Done, home: Path, port: int) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "app", "--port", str(port), "--json"], stdout=subprocess.PIPE, text=True, cwd=home,
        env=environment(home),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told == {"url": f"http://127.0.0.1:{port}", "archive": str(home / ".local/share/rag-kernels/archive")}
        assert healthy(port)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def healthy(port: int) -> bool:
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
                return bool(answer.read() == b"ok")
        except OSError:
            time.sleep(0.2)
    return False
