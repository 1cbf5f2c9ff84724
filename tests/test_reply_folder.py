"""A folder in the place of a model: an ablation writes prompts there, and takes replies from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

from cli_home import RELU, RIGHT, inside

BRIDGE = Path(__file__).parent / "bench" / "reply_folder.py"


def asked(folder: Path, prompt: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BRIDGE), str(folder), *options]
    return subprocess.run(command, input=prompt, capture_output=True, text=True, check=False, timeout=60)


def reply_to(prompt: Path, text: str) -> None:
    prompt.with_name(prompt.name.replace(".prompt.", ".reply.")).write_text(text)


def test_what_has_no_reply_is_written_down_and_asked_again(tmp_path: Path) -> None:
    for _ in range(2):
        refused = asked(tmp_path, "Say yes.")
        assert refused.returncode == 3 and "No reply yet" in refused.stderr and refused.stdout == ""
    assert asked(tmp_path, "Say no.").returncode == 3
    assert "0 of 2 prompts have a reply." in (tmp_path / "INDEX.md").read_text()
    [yes] = [file for file in tmp_path.glob("*.prompt.md") if file.read_text() == "Say yes."]
    reply_to(yes, "yes")
    found = asked(tmp_path, "Say yes.")
    assert (found.returncode, found.stdout) == (0, "yes")
    assert "1 of 2 prompts have a reply." in (tmp_path / "INDEX.md").read_text()


def test_an_ablation_takes_replies_from_files(tmp_path: Path) -> None:
    (tmp_path / "relu.py").write_text(RELU.problem.source)
    folder, over = tmp_path / "letters", Event()

    def answer() -> None:
        while not over.wait(0.1):
            for file in folder.glob("*.prompt.md"):
                ideas = "Propose" in file.read_text()
                reply_to(file, "1. Write each element once." if ideas else f"```cpp\n{RIGHT}\n```")

    Thread(target=answer, daemon=True).start()
    model = f"cmd:{sys.executable} {BRIDGE} {folder} --wait 300"
    options = ("--effort", "1", "--rounds", "1", "--drafts", "1", "--examples", "0", "--json")
    arms = ("--retrieval", "off,hybrid+cards")
    places = ("--archive", tmp_path / "archive", "--results", tmp_path / "results")
    rows = inside(tmp_path, "ablate", "relu.py", "--model", model, *options, *arms, *places, quick=True).rows
    over.set()
    one, other, *arms = rows
    assert (one["solved"], other["solved"], [arm["problems"] for arm in arms]) == (True, True, [1, 1])
    prompts = [file.read_text() for file in folder.glob("*.prompt.md")]
    assert len(prompts) == 2 and sum("# Techniques that may fit" in prompt for prompt in prompts) == 1
