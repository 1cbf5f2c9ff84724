"""What documents promise is there (commands, links, files, rows of examples), and generated pages are current."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import make_cli
import make_graph
import make_json
import make_messages
import make_python
import make_readme
import make_starter
import pytest
from cli_home import Done, inside

from rag_kernels.archive import docs as archive_docs
from rag_kernels.report.console import attempt_line, summary

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
FOLDERS = "eval|archive|ingest|rag_kernels|app|examples|tests|docs"

FOR_USERS = sorted(ROOT.glob("docs/*.md"))
LONGEST_PAGE_BYTES = 12 * 1024

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def commands(text: str) -> list[list[str]]:
    """Return the words of each `make` or `rag-kernels` command in fenced blocks, indented blocks and inline code."""
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S))
    indented = "\n".join(re.findall(r"^ {4,}(\S.*)$", text, re.M))
    inline = "\n".join(re.findall(r"`([^`\n]+)`", text))
    lines = re.findall(r"^\s*(?:\$ )?((?:make|rag-kernels) .+)$", f"{fenced}\n{indented}\n{inline}", re.M)
    return [line.partition("#")[0].split() for line in lines]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=60)


@functools.cache
def help_text(name: tuple[str, ...]) -> Done:
    return inside(ROOT, *name, "--help", COLUMNS="200", NO_COLOR="1")


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_readme_starts_with_its_two_commands() -> None:
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    assert {"make demo", "make test"} <= {" ".join(words) for words in commands(head)}


ATTEMPT = re.compile(
    r"(?P<attempt>\d+)  (?P<verdict>\w+) +(?P<least>≥?)(?P<eager>[\d.]+)x eager  ≥?(?P<compile>[\d.]+)x compile"
    r"  (?P<floor>\d+) % of floor  (?P<seconds>[\d.]+) s  (?P<writer>\w+): (?P<idea>.+)"
)
SUMMARY = re.compile(
    r"(?P<problem>\w+): kernel (?P<kernel_id>k_\w+), confirmed.*\n  (?P<eager>[\d.]+)x eager, (?P<compile>[\d.]+)x.*, "
    r"(?P<floor>\d+) % .* on (?P<device_name>.+)\n  (?P<label>.+), (?P<tier>\w+) tier, (?P<precision>\w+) precision, "
    r"(?P<writer>\w+) writer(?:\n  (?P<labels>(?!serves |\d).+))?(?:\n  serves (?P<serves>.+))?\n"
    r"  (?P<attempts>\d+) candidates in (?P<seconds>[\d.]+) s, .*; run (?P<run_id>r_\w+)\n"
    r"(?:  shown to the writer: (?P<shown>.+)\n)?  written to (?P<out>.+)"
)


def row_of(found: re.Match[str]) -> dict[str, object]:
    """Return what a command prints from, as far as its lines say it."""
    told = found.groupdict()
    numbers = {"speedup_eager": float(told["eager"]), "speedup_compile": float(told["compile"])}
    numbers |= {"speedup": min(numbers.values())}
    labels = [label for label in (told.get("labels") or "").split(", ") if label]
    numbers |= {"floor_fraction": int(told["floor"]) / 100, "seconds": float(told["seconds"])}
    kept = {
        "at_least": bool(told.get("least")),
        "claims_speed": "no speed claim" not in labels,
        "labels": [label for label in labels if label != "no speed claim"],
        "serves": told.get("serves"),
        "confirmed": True,
        "cost_usd": 0.0,
        "model": "",
        "note": "",
        "reason": "",
        "step": "",
    }
    return {**told, **numbers, **kept, "exemplars": [name for name in (told.get("shown") or "").split(", ") if name]}


def test_readmes_sample_is_what_the_command_prints_of_such_a_run() -> None:
    """`make readme` puts it there. What is printed of the numbers that it names is the same, word by word."""
    found = make_readme.COMMAND.search((ROOT / "README.md").read_text())
    assert found is not None and make_readme.sample(found[3]) == found[3]
    attempts = [ATTEMPT.match(line.strip()) for line in found[3].splitlines() if make_readme.ATTEMPT.match(line)]
    assert len(attempts) == make_readme.SHOWN + 1
    for attempt in attempts:
        assert attempt is not None and attempt_line(row_of(attempt)).strip() == attempt[0]
    end = SUMMARY.search(found[3])
    assert end is not None and found[3].endswith(summary(row_of(end)))


@every_document
def test_make_targets_exist(document: Path) -> None:
    found = [words[1:] for words in commands(document.read_text()) if words[0] == "make"]
    for target in {word for words in found for word in words if "=" not in word}:
        done = run("make", "--dry-run", target)
        assert done.returncode == 0, f"{document.name}: make {target}\n{done.stderr}"


@every_document
def test_subcommands_and_options_exist(document: Path) -> None:
    wanted: dict[tuple[str, ...], set[str]] = {}
    for words in (words[1:] for words in commands(document.read_text()) if words[0] == "rag-kernels"):
        depth = 2 if words[0] == "archive" else 1
        name = tuple(itertools.takewhile(re.compile(r"[a-z]").match, words[:depth]))
        wanted.setdefault(name, set()).update(re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", " ".join(words)))
    for name, options in wanted.items():
        done = help_text(name)
        assert done.code == 0, f"{document.name}: rag-kernels {' '.join(name)}\n{done.err}"
        missing = options - set(re.findall(r"--[a-z][a-z-]*", done.out))
        assert not missing, f"{document.name}: rag-kernels {' '.join(name)} has no {', '.join(sorted(missing))}"


@every_document
def test_links_resolve(document: Path) -> None:
    text = document.read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), f"{document.name} links to {link}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            assert anchor in {slug(heading) for heading in headings}, f"{document.name} links to {link}"


@every_document
def test_files_named_in_text_exist(document: Path) -> None:
    for name in re.findall(rf"`((?:{FOLDERS})/[\w/.-]*)`", document.read_text()):
        assert (ROOT / name).exists(), f"{document.name} names {name}"


def test_the_way_of_one_problem_names_what_is_there() -> None:
    text = (ROOT / "docs" / "one_problem.md").read_text()
    rows = re.findall(r"^\| \d+ \| [^|]+ \| `([^`]+\.py)`, `([^`]+)` \| [^|]+ \|$", text, re.M)
    assert len(rows) == 20
    for file, name in rows:
        kinds = (ast.FunctionDef, ast.ClassDef)
        defined = {n.name for n in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(n, kinds)}
        assert set(name.split(".")) <= defined, (file, name)


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_a_page_for_users_is_short_and_no_notebook(page: Path) -> None:
    """What was tried and not kept, and tables with dates, stand in docs/measured."""
    text = page.read_text()
    assert len(text.encode()) <= LONGEST_PAGE_BYTES, f"{page.name} has {len(text.encode())} bytes"
    assert "taken back" not in text


def test_every_notebook_is_in_the_index() -> None:
    folder = ROOT / "docs" / "measured"
    rows = re.findall(r"^\| \[(\w+\.md)\]", (folder / "README.md").read_text(), re.M)
    assert sorted(rows) == sorted(page.name for page in folder.glob("*.md") if page.name != "README.md")


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("archive_schema", archive_docs.page),
        ("cli", make_cli.page),
        ("json", make_json.page),
        ("packages", make_graph.page),
        ("python", make_python.page),
        ("worker_messages", make_messages.page),
    ],
)
def test_generated_pages_are_current(name: str, page: Callable[[], str]) -> None:
    assert (ROOT / "docs" / "reference" / f"{name}.md").read_text() == page(), "run `make docs`"


@pytest.mark.parametrize("name", make_starter.PAGES)
def test_a_page_tells_what_the_starter_archive_holds(name: str) -> None:
    assert (ROOT / name).read_text() == make_starter.page(name), "run `make docs`"


def test_every_generated_page_is_tested() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert pages == {"archive_schema", "cli", "json", "packages", "python", "worker_messages"}


def test_every_example_has_a_row() -> None:
    rows = re.findall(r"^\| \[\w+\]\((\w+\.py)\)", (ROOT / "examples" / "README.md").read_text(), re.M)
    assert rows == [path.name for path in sorted((ROOT / "examples").glob("*.py"))]


def test_the_summary_of_the_offline_writers_rows_is_made_from_the_file() -> None:
    """And the file is what the command writes, so that newer rows can be put into it."""
    file, own = ROOT / "docs" / "measured" / "offline_tables.md", {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "bench" / "offline_tables.py", file, "--check"],
        env=dict(os.environ) | own,
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    summary = (ROOT / "docs" / "measured" / "offline_h200.md").read_text()
    on_gpu = done.stdout.partition("**NVIDIA H200")[2].partition("**Two cores")[0]
    lines = [line for line in on_gpu.splitlines() if line.startswith("| level1 |")]
    assert len(lines) > 9 and all(line in summary for line in lines), "\n".join(lines)
    (median,) = re.findall(r"level1: \d+ problems that memory bounds, (median \d+ % of the floor)", on_gpu)
    assert median in re.sub(r"\s+", " ", summary)
