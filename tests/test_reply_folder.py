"""A folder in the place of a model: an ablation writes prompts there, stops, and goes on when replies have come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cli_home import QUICK_PROGRAM, RELU, RIGHT
from cli_home import run as run_command

BRIDGE = Path(__file__).parent / "bench" / "reply_folder.py"


def test_an_ablation_is_asked_by_files_and_goes_on_with_replies_from_files(tmp_path: Path) -> None:
    (tmp_path / "relu.py").write_text(RELU.problem.source)
    folder = tmp_path / "letters"
    asked = ("--effort", "1", "--rounds", "1", "--drafts", "1", "--retrieval", "off,hybrid+cards", "--json")
    places = ("--archive", tmp_path / "archive", "--results", tmp_path / "results")
    command = ("ablate", "relu.py", "--model", f"cmd:{sys.executable} {BRIDGE} {folder}", *asked, *places)

    def rows() -> list[dict[str, object]]:
        return run_command(tmp_path, *command, program=QUICK_PROGRAM).rows

    def reply(text: str) -> int:
        """Answer what is open, and return how many prompts that were."""
        waiting = [
            p for p in folder.glob("*.prompt.md") if not p.with_name(p.name.replace("prompt", "reply")).is_file()
        ]
        for file in waiting:
            file.with_name(file.name.replace("prompt", "reply")).write_text(text)
        return len(waiting)

    assert ["ended with code 3" in str(row["failure"]) for row in rows()] == [True, True]
    assert "0 of 2 prompts have a reply." in (folder / "INDEX.md").read_text()
    assert reply("1. Write each element once.") == 2  # one request for ideas an arm
    assert ["ended with code 3" in str(row["failure"]) for row in rows()] == [True, True]
    prompts = [file.read_text() for file in folder.glob("*.prompt.md")]
    assert len(prompts) == 4 and sum("# Techniques that may fit" in prompt for prompt in prompts) == 2
    assert reply(f"```cpp\n{RIGHT}\n```") == 2
    off, cards, *arms = rows()
    assert (off["solved"], cards["solved"], len(arms)) == (True, True, 2)
    assert [arm["problems"] for arm in arms] == [1, 1]


def test_a_reply_that_comes_while_it_waits_is_taken(tmp_path: Path) -> None:
    command = [sys.executable, str(BRIDGE), str(tmp_path), "--wait", "60"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdin is not None and asking.stdout is not None
        asking.stdin.write("Say yes.")
        asking.stdin.close()
        while not (found := list(tmp_path.glob("*.prompt.md"))):
            assert asking.poll() is None
        found[0].with_name(found[0].name.replace("prompt", "reply")).write_text("yes")
        assert asking.stdout.read() == "yes"
    assert asking.returncode == 0 and "1 of 1" in (tmp_path / "INDEX.md").read_text()
