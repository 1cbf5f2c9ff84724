"""How compute-sanitizer's tools are asked, by a script in their place: which call an error is of, who takes too long.

What the tools find in real kernels is shown on a GPU, by the zoo.
"""

import base64
from pathlib import Path
from typing import Any

import pytest

from rag_kernels.eval.instruments import sanitizers

ERROR = 'echo "========= Invalid __global__ read of size 4 bytes"; echo "at kernel0.cu:7"; echo SUMMARY; exit 9'


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its arguments: --tool NAME, other options, PROGRAM CALL..."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "bin" / "compute-sanitizer"


def reports(tool: Path, script: str, program: str = "exit 0") -> list[dict[str, Any]]:
    """Of two calls, whose contents are `small` and `odd`; the script sees `$tool` and `$calls`."""
    alone = tool.parent / "program"
    alone.write_text(f"#!/bin/sh\n{program}\n")
    alone.chmod(0o755)
    read = f'while [ "$1" != {alone} ]; do' + ' [ "$1" = --tool ] && tool=$2; shift; done; shift; calls="$*"'
    tool.write_text(f'#!/bin/sh\n{read}\necho "$tool $(cat $calls)" >> asked\n{script}\n')
    tool.chmod(0o755)
    calls = [base64.b64encode(content).decode() for content in (b"small", b"odd")]
    payload = {"checked": str(alone), "raced": "", "gpu": True, "calls": calls}
    found: list[dict[str, Any]] = sanitizers.run(payload)["reports"]
    return found


def asked() -> list[str]:
    return sorted(Path("asked").read_text().split("\n")[:-1])


def test_each_tool_starts_once_for_all_calls(tool: Path) -> None:
    clean = {"ran": list(sanitizers.GPU_TOOLS), "found": [], "left_out": []}
    assert reports(tool, "echo SUMMARY") == [clean, clean]
    assert asked() == sorted(f"{name} smallodd" for name in sanitizers.GPU_TOOLS)


def test_an_error_is_of_the_call_that_shows_it_alone(tool: Path) -> None:
    small, odd = reports(tool, f"if [ $tool = memcheck ] && grep -q odd $calls; then {ERROR}; fi; echo SUMMARY")
    assert small == {"ran": list(sanitizers.GPU_TOOLS), "found": [], "left_out": []}
    assert odd["found"] == [["memcheck", "Invalid __global__ read of size 4 bytes, line 7"]]
    assert [line for line in asked() if line.startswith("memcheck")] == [
        "memcheck oddodd",
        "memcheck smallodd",
        "memcheck smallsmall",
    ]


def test_an_error_beside_a_call_that_never_ends_is_found(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizers, "GPU_LIMIT_S", 2.0)
    hang = "if grep -q odd $calls; then sleep 60; fi; "
    small, odd = reports(tool, f"{hang}if [ $tool = memcheck ]; then {ERROR}; fi; echo SUMMARY")
    assert small["found"] == [["memcheck", "Invalid __global__ read of size 4 bytes, line 7"]]
    assert small["ran"] == list(sanitizers.GPU_TOOLS) and odd["ran"] == [] and len(odd["left_out"]) == 4


def test_an_error_that_no_size_shows_alone_is_of_the_later_one(tool: Path) -> None:
    small, odd = reports(tool, f'if [ $tool = racecheck ] && [ "$1" != "$2" ]; then {ERROR}; fi; echo SUMMARY')
    assert small["found"] == [] and [tool for tool, _ in odd["found"]] == ["racecheck"]


def test_an_error_of_the_second_call_is_of_either_size(tool: Path) -> None:
    small, odd = reports(tool, f'if [ $tool = racecheck ] && [ -n "$2" ]; then {ERROR}; fi; echo SUMMARY')
    assert [tool for tool, _ in small["found"]] == ["racecheck"] == [tool for tool, _ in odd["found"]]


def test_a_long_log_does_not_hold_a_tool_up(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pipe was read only after the slower tools before it had ended."""
    monkeypatch.setattr(sanitizers, "GPU_LIMIT_S", 2.0)
    slow = "if [ $tool = memcheck ]; then sleep 60; fi; "
    loud = f"if [ $tool = racecheck ]; then yes | head -c 300000; {ERROR}; fi; "
    for report in reports(tool, f"{slow}{loud}echo SUMMARY"):
        assert [tool for tool, _ in report["found"]] == ["racecheck"]


def test_a_tool_that_takes_too_long_is_left_out(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host a tool may be slow: that says nothing about the kernel."""
    monkeypatch.setattr(sanitizers, "GPU_LIMIT_S", 1.0)
    for report in reports(tool, "if [ $tool = racecheck ]; then sleep 60; fi; echo SUMMARY"):
        assert report["left_out"] == ["racecheck was not done after 1 s"] and report["found"] == []
        assert report["ran"] == ["memcheck", "initcheck", "synccheck"]


def test_errors_that_take_too_long_to_tell_are_found(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizers, "GPU_LIMIT_S", 1.0)
    told = 'echo "========= Uninitialized __global__ memory read of size 4 bytes"; echo "at kernel0.cu:7"; sleep 60'
    for report in reports(tool, f"if [ $tool = initcheck ]; then {told}; fi; echo SUMMARY"):
        assert report["ran"] == list(sanitizers.GPU_TOOLS) and not report["left_out"]
        assert report["found"] == [["initcheck", "Uninitialized __global__ memory read of size 4 bytes, line 7"]]


def test_without_the_tool_nothing_is_said_to_have_run(tool: Path) -> None:
    for report in reports(tool, "echo 'Device not supported'; exit 1"):
        assert report["ran"] == [] and report["left_out"][0] == "memcheck does not work here"


def test_a_call_that_fails_where_the_device_was_reset_is_told(tool: Path) -> None:
    """The program itself says so, beside the tools, of the first call."""
    small, odd = reports(tool, "echo SUMMARY", '[ "$1" = --anew ] && echo "invalid argument" >&2 && exit 8')
    assert small["found"] == [[sanitizers.ANEW, "invalid argument"]] and odd["found"] == []
    assert small["ran"] == list(sanitizers.GPU_TOOLS)
