"""What `generate --out` writes: a module or the kernel's own source, as the name asks and the form allows."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import attempt, problem
from typer.testing import CliRunner

from rag_kernels.cli import app
from rag_kernels.eval.records import Candidate
from rag_kernels.export.out_file import out_suffixes, write_kernel
from rag_kernels.export.packages import write_package

CPP = Candidate("RK_EXPORT(forward, f)\n", "kernel", "cpu")
CUDA = Candidate("__global__ void k() {}\nRK_EXPORT(forward, f)\n", "kernel", "cuda")
COMPOSED = Candidate("KERNELS = r'''x'''\n\n\ndef forward(x):\n    return x\n", "composed", "cpu")
MODULE = Candidate("class ModelNew: ...\n", "module", "cpu")
PYBIND = Candidate("PYBIND11_MODULE(x, m) {}\n", "module", "cuda")


@pytest.mark.parametrize(
    ("candidate", "asked", "name", "format_name"),
    [
        (CPP, "best.cpp", "best.cpp", "source"),
        (CPP, "best.py", "best.py", "module"),
        (CPP, "best.cu", "best.cpp", "source"),
        (CUDA, "best.cu", "best.cu", "source"),
        (COMPOSED, "best.py", "best.py", "module"),
        (COMPOSED, "best.cpp", "best.py", "module"),
        (MODULE, "best.py", "best.py", "source"),
        (PYBIND, "best.py", "best.cu", "source"),
    ],
)
def test_the_suffix_asks_for_a_format_and_the_form_decides(
    candidate: Candidate, asked: str, name: str, format_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = attempt(p=problem(), candidate=candidate)
    with caplog.at_level(logging.WARNING):
        written = write_kernel(made, tmp_path / asked)
    assert written == tmp_path / name and [written] == list(tmp_path.iterdir())
    module = write_package(made, "module", tmp_path / "module") if format_name == "module" else None
    assert written.read_text() == (module.read_text() if module else candidate.source)
    assert ("is written as" in caplog.text) == (asked != name)


def test_a_file_that_will_run_the_module_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    updating = replace(problem(), mutated=("running_mean", "running_var"))
    with caplog.at_level(logging.WARNING):
        write_kernel(attempt(p=updating, candidate=CPP), tmp_path / "best.cpp")
        write_kernel(attempt(p=problem(), candidate=CPP), tmp_path / "other.py")
        assert not caplog.text
        write_kernel(attempt(p=updating, candidate=CPP), tmp_path / "best.py")
    assert "updates running_mean, running_var at each call" in caplog.text and "eval mode" in caplog.text


def test_a_module_holds_the_kernel(tmp_path: Path) -> None:
    module = write_package(attempt(p=problem(), candidate=CPP), "module", tmp_path / "best.py").read_text()
    assert CPP.source in module and "class ModelNew(DropIn, Model)" in module
    compile(module, "module", "exec")


def test_a_problem_keeps_its_names_in_a_module(tmp_path: Path) -> None:
    """A window's size is a KERNEL to many, which is no name of what the file adds."""
    p, names = problem(), "KERNEL, FUNCTIONAL, BACKWARD"
    source = f"{p.problem.source}\n{names} = 3, 5, 7\n\n\ndef get_init_inputs():\n    return [{names}]\n"
    made = attempt(p=replace(p, problem=replace(p.problem, source=source)), candidate=CPP)
    space: dict[str, Any] = {}
    exec(write_package(made, "module", tmp_path / "best.py").read_text(), space)
    assert space["get_init_inputs"]() == [3, 5, 7] == space["ModelNew"].VERIFIED()


def test_the_help_of_out_names_every_suffix() -> None:
    told = " ".join(CliRunner().invoke(app, ["generate", "--help"]).output.split())
    assert out_suffixes(["cpu", "cuda"]) == (".py", ".cpp", ".cu")
    assert all(suffix in told for suffix in out_suffixes(["cpu", "cuda"]))
