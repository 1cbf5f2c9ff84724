"""Mutants of honest kernels: the operators, the witness and the judge, driven by the command on a folder of kernels."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_home import inside
from support.kept import kept_judge, kept_workers

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.places import ROOT
from rag_kernels.eval.process.sandbox import found
from rag_kernels.eval.zoo.cuda_tasks import CUDA_TASKS, cuda
from rag_kernels.eval.zoo.problems import PROBLEMS
from rag_kernels.eval.zoo.tasks import cpp
from rag_kernels.mutation import runner
from rag_kernels.mutation.cpp_text import blanked, calls, loops, operand_end, operand_start
from rag_kernels.mutation.mutants import ALL, mutants
from rag_kernels.mutation.originals import starter_originals, zoo_originals
from rag_kernels.mutation.peer_rules import RULES
from rag_kernels.mutation.records import Row, read_rows
from rag_kernels.mutation.report import line, share, summary, tables
from rag_kernels.mutation.same_code import code_digest
from rag_kernels.mutation.witness_child import SLOW, _forked, _outcome, _patiently

KERNEL = """\
#include "rag_kernel.h"
typedef float Acc;
typedef double Wide;
inline void put(float& to, float v) { to = v; }
void run(rk::Tensor<const float> x, double eps, rk::Tensor<float> out) {
  const int64_t n = x.size(-1), rows = x.numel() / n;
  #pragma omp parallel for reduction(+ : total)
  for (int64_t r = 0; r < rows; ++r) {
    Acc top = -INFINITY, part = 0;
    Wide sum = 0;  // of exp(x - top) / n
    int64_t total = 0;
    for (int64_t i = 0; i < n; ++i) top = std::max(top, x.data[r * n + i]);
    for (int64_t i = 0; i < n; ++i) sum += std::exp(x.data[r * n + i] - top);
    const Acc scale = 1 / std::sqrt(sum / n + Acc(eps));
    for (int64_t i = 0; i < n; ++i) put(out.data[r * n + i], i <= r ? -scale * 0.5f : std::round(part));
  }
}
RK_EXPORT(forward, run)
"""
NAMES_ITSELF = """\
import os, sys
sys.path.insert(0, sys.argv[1])
from rag_kernels.eval.process.lockdown import Confinement, lock_down
confinement = Confinement(("/usr", "/lib"), ("/dev/null",), ("landlock",))

def named() -> bool:
    try:
        with open(f"/proc/self/task/{os.getpid()}/comm", "w") as file:
            file.write("a thread")
    except PermissionError:
        return False
    return True

def of_a_fork(lock: bool) -> bool:
    if (pid := os.fork()) == 0:
        if lock:
            lock_down(confinement, sys.argv[2], may_fork=False)
        os._exit(named())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1

by_itself = of_a_fork(True)
lock_down(confinement, sys.argv[2], may_fork=True)
print("by itself:", by_itself, "of a locked worker:", of_a_fork(False))
"""
# Of every operator, a change that it makes there.
CHANGES = {
    "bounds off by one": "r <= rows",
    "dropped or doubled term": "std::exp(x.data[r * n + i]);",
    "wrong axis or stride": "i * n + r",
    "lost epsilon": "std::sqrt(sum / n);",
    "constant of another problem": "0.505f",
    "reduction start": "Wide sum = 1;",
    "missing or moved barrier": "#pragma omp parallel for\n",
    "stale buffer": "    static Wide sum = 0;",
    "uninitialised tail": "i < n / 16 * 16",
    "swapped arguments": "n / x.numel()",
    "mask edge": "i < r ?",
    "comparison": "std::round(part) : -scale * 0.5f",
    "sign": "? scale * 0.5f",
    "NaN and infinity": "std::fmax(top, x.data[r * n + i])",
    "overflow at 2^31": "int32_t total = 0;",
    "narrower accumulator": "sum = as_bf16(sum + (std::exp(x.data[r * n + i] - top)))",
    "narrower storage": "const Acc scale = as_tf32(1 / std::sqrt(sum / n + Acc(eps)));",
    "fast intrinsic": "quick_sqrt_1(sum / n + Acc(eps))",
    "wrong rounding": "std::floor(part)",
}


@pytest.mark.parametrize("operator", ALL)
def test_every_operator_makes_its_fault(operator: str) -> None:
    # The comparison's arms are operands only where the first is one: no factor follows it there.
    source = KERNEL.replace("-scale * 0.5f :", "scale :") if operator == "comparison" else KERNEL
    wanted = "std::round(part) : scale" if operator == "comparison" else CHANGES[operator]
    made = [m.source for m in mutants(source, seed="0", only=frozenset({operator}))]
    assert wanted not in source and any(wanted in text for text in made), made


def test_mutants_are_drawn_by_the_seed_and_none_comes_twice() -> None:
    first = [(m.operator, m.source) for m in mutants(KERNEL, seed="1")]
    assert first == [(m.operator, m.source) for m in mutants(KERNEL, seed="1")]
    assert first != [(m.operator, m.source) for m in mutants(KERNEL, seed="2")]
    assert len({source for _, source in first}) == len(first) > 100
    assert {operator for operator, _ in first[:19]} == set(ALL)  # a round of all, before the second of any


def test_comments_directives_and_the_export_are_left_alone() -> None:
    made = list(mutants(KERNEL, seed="1"))
    assert all("// of exp(x - top) / n" in m.source and "RK_EXPORT(forward, run)" in m.source for m in made)
    assert all('#include "rag_kernel.h"' in m.source for m in made)
    assert len(blanked(KERNEL)) == len(KERNEL)


def test_text_is_read_by_its_brackets() -> None:
    text = "y = f(a[i + 1], g(b)) - h.size(0) * 2;"
    assert text[4 : operand_end(text, 4)] == "f(a[i + 1], g(b))"
    assert text[operand_start(text, 21) : 21] == "f(a[i + 1], g(b))"
    assert [call.name for call in calls(text)] == ["f", "g", "size"]
    (outer, *_) = calls(text)
    assert [text[a:b] for a, b in outer.arguments] == ["a[i + 1]", "g(b)"]
    (loop,) = loops("for (int i = 0; i < f(n); ++i) work(i);")
    assert loop.condition == (15, 24) and loop.holds(17) and not loop.holds(40)


def test_sources_of_all_stocks_can_be_mutated() -> None:
    for task in CUDA_TASKS:
        assert len(list(mutants(cuda(task), seed="0"))) > 20
    names = [original.name for original in zoo_originals("cpu")]
    assert len(names) > 600 and len(set(names)) == len(names)
    starter = list(starter_originals("cpu"))
    assert len(list(starter_originals("cuda"))) > 200
    assert len(starter) > 50 and all(o.candidate.tier == "kernel" and "Model" in o.problem.source for o in starter)
    barriers = mutants("void f() {\n  a[i] = 1;\n  __syncthreads();\n  b = a[j];\n}\n", seed="0")
    changed = [m.source for m in barriers if m.operator == "missing or moved barrier"]
    assert any("__syncthreads" not in text for text in changed)
    assert any(text.index("b = a[j];") < text.index("__syncthreads") for text in changed if "__syncthreads" in text)


def test_machine_code_is_compared_without_names_and_comments(tmp_path: Path) -> None:
    plain = cpp("rowsum")
    same, unused = plain.replace("total", "all"), plain + "static inline int never() { return 2; }\n"
    other = plain.replace("double total = 0", "double total = 1")
    sources = [plain, same + "// said\n", unused, other]
    built = build([(source, "cpu") for source in sources], tools=toolchain(), cache=tmp_path)
    digests = [code_digest(one.library) for one in built if isinstance(one, Built)]
    assert len(digests) == 4 and digests[0] == digests[1] == digests[2] != digests[3]


def test_the_rules_of_other_evaluators() -> None:
    one = torch.ones(4)
    accepted = {name: [e for e in (5e-3, 5e-4, 5e-5, 5e-6) if r.accepts([one + e], [one])] for name, r in RULES.items()}
    assert accepted["KernelBench v0.1"] == [5e-3, 5e-4, 5e-5, 5e-6]
    assert accepted["KernelBench"] == [5e-5, 5e-6]
    assert accepted["robust-kbench"] == [5e-6]
    assert accepted["KernelBench-Verified"] == [5e-4, 5e-5, 5e-6]
    assert not RULES["KernelBench"].accepts([one * torch.nan], [one * torch.nan])  # as torch.allclose has it
    assert RULES["KernelBench"].accepts([one.bfloat16() + 0.01], [one.bfloat16()])


def row(state: str, operator: str = "sign", **more: Any) -> Row:
    given = {"key": "k", "original": "o", "family": "f", "stock": "zoo", "witness": "own", "sizes": "own"} | more
    return Row(operator=operator, state=state, **given)  # type: ignore[arg-type]


def test_the_report_counts_what_is_shown_and_what_is_killed(tmp_path: Path) -> None:
    rows = [
        row("killed", refused_by=("KernelBench",)),
        row("labelled", "narrower storage"),
        row("survived", change="-a\n+b"),
        row("survived", witness="NaN"),
        row("no witness", witness=""),
        row("survived", operator="", codes=("passed",)),
        row("killed", operator="", codes=("wrong",)),
    ]
    told = summary(rows)
    assert (told["mutants"], told["witnessed"], told["killed"]) == (5, 4, 2)
    assert (told["witnessed_finite"], told["killed_finite"]) == (3, 2)
    assert (told["originals"], told["originals_rejected"]) == (2, 1)
    assert told["missed_by"]["KernelBench"] == 2 and told["missed_by"]["robust-kbench"] == 3
    text = tables(rows)
    assert f"| killed of those that finite inputs show | {share(2, 3)} |" in text
    assert "| narrower storage | 1 | 0 | 0 | 1 | 0 |" in text and "  -a\n  +b" in text
    assert "rejected" in line(rows[-1]) and "accepted" in line(rows[-2])
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(r.line() for r in rows) + '\n{"key": "cut o')
    assert list(read_rows(file)) == [replace(r) for r in rows]


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "open_judge", kept_judge)
    monkeypatch.setattr(runner, "open_workers", kept_workers)


def mutate(folder: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the command; its exit code and the objects that it prints."""
    done = inside(folder, "mutate", folder, *options, "--json")
    return done.code, done.rows


def test_the_command_shows_faults_judges_them_and_goes_on_where_it_was(tmp_path: Path) -> None:
    folder, rows = tmp_path / "own", tmp_path / "rows.jsonl"
    folder.mkdir()
    (folder / "sums.py").write_text(PROBLEMS["rowsum"])
    (folder / "sums.cpp").write_text(cpp("rowsum"))
    operators = ("--only", "dropped or doubled term", "--only", "narrower accumulator", "--seed", "3")
    code, told = mutate(folder, *operators, "--each", "4", "--rows", str(rows))
    *made, last = told
    assert code == 0 and last["killed"] == last["witnessed"] > 1 and last["originals_rejected"] == 0
    killed = [r for r in made if r["state"] == "killed"]
    assert all(r["witness"] and r["codes"] and r["change"] for r in killed)
    assert all(r["operator"] in operators or r["operator"] == "" for r in made)
    again, told = mutate(folder, *operators, "--each", "4", "--rows", str(rows))
    assert (again, len(told)) == (0, 1) and told[0]["mutants"] == last["mutants"]  # nothing was left to do


def test_parts_share_the_problems_whatever_their_seeds_and_long_groups_are_cut() -> None:
    chosen = list(zoo_originals("cuda"))
    parts = [runner.plan(chosen, seed=seed, each=30, part=(seed, 4)) for seed in (1, 2, 3, 4)]
    names = [[planned.original.name for g in groups for planned in g if planned.itself] for groups in parts]
    assert all(names) and sorted(itertools.chain(*names)) == sorted(original.name for original in chosen)
    counts = Counter[str]()
    for planned in itertools.chain(*itertools.chain(*parts)):
        counts[planned.original.name] += len(planned.mutants)
    assert max(counts.values()) == 30 and sum(counts.values()) > 900
    for groups in parts:
        assert all(len({planned.original.problem.source for planned in group}) == 1 for group in groups)
        assert all(sum(len(planned.mutants) for planned in group) < 2 * runner.TOGETHER for group in groups)


def test_a_folder_without_problems_and_an_unknown_operator_are_told(tmp_path: Path) -> None:
    (tmp_path / "lonely.cpp").write_text(cpp("rowsum"))
    code, told = mutate(tmp_path)
    assert code == 2 and "put NAME.py beside NAME.cpp" in told[0]["error"]
    code, _ = mutate(tmp_path, "--only", "goblins")
    assert code == 2
    code, _ = mutate(tmp_path, "--part", "5/4")
    assert code == 2


def test_what_shows_nothing_is_set_aside(tmp_path: Path) -> None:
    """A sum in fp32 for one in fp64 is another order of rounding; one of few bits is a fault. Where an original of
    fixed sizes raises itself, a mutant that raises as well shows nothing.
    """
    fixed = 'RK_CHECK(x.size(1) == 512, "this kernel takes rows of 512");'
    for name, text in {
        "sums": cpp("rowsum").replace("double total = 0;", "double total = 0.0;"),
        "fixed": cpp("rowsum", before=fixed),
    }.items():
        (tmp_path / f"{name}.py").write_text(PROBLEMS["rowsum"])
        (tmp_path / f"{name}.cpp").write_text(text)
    _, (*made, _) = mutate(tmp_path, "--only", "narrower accumulator", "--each", "9")
    states = {r["change"].rpartition("\n+")[2].strip(): r["state"] for r in made if r["operator"]}
    assert states["float total = 0.0;"] == states["float total = 0;"] == "no witness"
    assert states["for (int64_t i = 0; i < n; ++i) total = as_bf16(total + (a[i]));"] == "killed"


def test_a_child_is_judged_by_its_end() -> None:
    def fails(say: Any) -> None:
        raise ValueError("no")

    def talks(say: Any) -> None:
        for i in range(1000):
            say("at", i)
            time.sleep(0.05)

    assert _forked([lambda say: say("at", ["own", "own"])], 5.0) == [{"at": ["own", "own"], "end": "done"}]
    assert _forked([lambda say: os.kill(os.getpid(), signal.SIGKILL)], 5.0)[0]["end"] == "ended by SIGKILL"
    assert _forked([lambda say: time.sleep(60)], 0.2)[0]["end"] == "does not end"
    assert _forked([talks], 0.2)[0]["end"] == SLOW
    assert _forked([fails], 5.0)[0]["end"] == "ValueError: no"


def test_a_child_goes_on_until_one_breaks_it() -> None:
    def fails(say: Any) -> None:
        say("at", ["own", "own"])
        raise ValueError("no")

    def begin() -> None:
        raise OSError("no context")

    right: Any = lambda say: say("right 0", True)  # noqa: E731
    done = _forked([right, fails, right], 5.0)
    assert done == [{"right 0": True, "end": "done"}, {"at": ["own", "own"], "end": "ValueError: no"}]
    (told,) = _forked([right, right], 5.0, begin=begin)  # what is not begun has shown nothing
    assert told == {"end": "OSError: no context"} and _outcome(told)["witness"] == ""


def test_what_does_not_end_is_tried_again_for_longer() -> None:
    right: Any = lambda say: say("right 0", True)  # noqa: E731
    late: Any = lambda say: time.sleep(0.6)  # noqa: E731
    assert [one["end"] for one in _forked([right, late, right], 0.2)] == ["done", "does not end"]
    assert [one["end"] for one in _patiently(_forked, [right, late, right], 0.2)] == ["done", "done"]
    assert _patiently(_forked, [lambda say: time.sleep(60)], 0.1)[0]["end"] == "does not end"


def test_a_fork_may_write_what_a_gpus_driver_writes(tmp_path: Path) -> None:
    """A worker that is locked down has its own entries in /proc alone, and CUDA names its threads there."""
    (tmp_path / "looks.py").write_text(NAMES_ITSELF)
    layers = tuple(layer for layer in found().layers if layer == "landlock")
    if not layers:
        pytest.skip("this machine has no Landlock")
    done = subprocess.run([sys.executable, tmp_path / "looks.py", ROOT, tmp_path], capture_output=True, text=True)
    assert done.stdout.split() == ["by", "itself:", "True", "of", "a", "locked", "worker:", "False"], done.stderr
