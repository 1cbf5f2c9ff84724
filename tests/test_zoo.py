"""The zoo: specimens are well formed and compile, and the command judges some of them, twins too, from end to end."""

from __future__ import annotations

import io
import json
import re
import tokenize
from pathlib import Path

import pytest
from cli_home import inside
from support.compiler_reading import refusals
from support.kept import kept_judge

from rag_kernels.cli.shared.common import JSON_SCHEMA
from rag_kernels.eval.build.candidate_form import check_composed, kernels_text
from rag_kernels.eval.limits import DEFENCES
from rag_kernels.eval.records import Candidate
from rag_kernels.eval.zoo.exploits.catalogue import SPECIMENS
from rag_kernels.eval.zoo.specimen import VOID, Specimen
from rag_kernels.eval.zoo.tasks import TASKS
from rag_kernels.zoo import runner
from rag_kernels.zoo.ablation import RESTS_ON, resting_on
from rag_kernels.zoo.parts import honest_corpus, read, share
from rag_kernels.zoo.report import summary
from rag_kernels.zoo.runner import chosen, texts_of

CODES = re.compile(
    r"void|wrong(:.+)?|rejected(:\w+)?|crashed|timed_out(:\w+)?|build_failed|label:[\w -]+(: .+)?"
)  # the forms of rag_kernels.eval.verdict_codes, and the zoo's own
CPU_WORDS = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\S")
BUILD_MAY_FAIL = {"code that runs when it is built or loaded"}

# One of each family, over four tasks; `rag-kernels zoo` judges all of them.
QUICK = [
    "zeros",
    "pointer cache",
    "comparison patched",
    "rest before work",
    "results printed",
    "operands in bfloat16",
    "a team in a team",
]

every_specimen = pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda s: s.idea)


def shape(candidate: Candidate) -> list[str]:
    """The tokens of a source with every name that it makes up replaced by its order of appearance."""
    if candidate.tier == "kernel":
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", candidate.source, flags=re.S)
        words = CPU_WORDS.findall(text)
    else:
        found = tokenize.generate_tokens(io.StringIO(candidate.source).readline)
        words = [t.string for t in found if t.type not in (tokenize.COMMENT, tokenize.NL)]
    own: dict[str, str] = {}
    names = re.compile(r"(?!_mm|__)[a-z_]\w*$")
    return [own.setdefault(w, f"name{len(own)}") if names.match(w) else w for w in words]


def test_the_zoo_has_its_size() -> None:
    cpu = [s for s in SPECIMENS if s.backend == "cpu"]
    assert len({s.idea for s in cpu}) == len(cpu) >= 60
    assert len({s.idea for s in SPECIMENS}) == len(SPECIMENS)
    assert sum(s.backend == "cuda" for s in SPECIMENS) >= 15
    assert sum(s.held_out for s in SPECIMENS) >= 15
    assert {s.family for s in cpu} == {
        "correctness",
        "forging",
        "state",
        "timing",
        "tampering",
        "precision",
        "legal but trivial",
        "cpu-specific",
    }


@every_specimen
def test_a_specimen_is_well_formed(specimen: Specimen) -> None:
    assert specimen.task in TASKS
    assert specimen.origin[:2] in {"W:", "R:", "D:", "R "}
    assert specimen.expect
    assert [code for code in specimen.expect if not CODES.fullmatch(code)] == []
    assert len(specimen.variants) >= 2
    shapes = [shape(c) for c in (*specimen.candidates(), specimen.honest)]
    repeated = [i for i, one in enumerate(shapes) if one in shapes[:i]]
    assert repeated == [], "differs from another variant, or from its twin, in names only"
    for candidate in (*specimen.candidates(), specimen.honest):
        assert candidate.backend == specimen.backend
        if candidate.tier == "composed":
            check_composed(candidate.source)
        elif candidate.tier == "module":
            compile(candidate.source, "<module>", "exec")


def test_every_cpu_source_compiles(tmp_path: Path) -> None:
    """Read, not built, which would take minutes; the longest text of each idea and its twin stand for it."""
    chosen: dict[str, str] = {}
    for specimen in (s for s in SPECIMENS if s.backend == "cpu" and s.idea not in BUILD_MAY_FAIL):
        compiled = [c for c in (*specimen.candidates(), specimen.honest) if c.tier != "module"]
        for candidate in sorted(compiled, key=lambda c: len(c.source))[-1:]:
            text = candidate.source if candidate.tier == "kernel" else kernels_text(candidate.source)
            chosen[text] = specimen.idea
    assert {chosen[text]: said for text, said in refusals(chosen, tmp_path).items()} == {}


def test_parts_make_the_whole() -> None:
    specimens, honest = chosen("cuda"), honest_corpus("cuda")
    parts = [share(specimens, honest, f"{number}/4") for number in (1, 2, 3, 4)]
    assert sorted(s.idea for part, _ in parts for s in part) == sorted(s.idea for s in specimens)
    assert sorted(h.name for _, part in parts for h in part) == sorted(h.name for h in honest)
    counts = [sum(len(g) for g in texts_of(*part, "cuda").values()) for part in parts]
    assert max(counts) <= 1.5 * min(counts)
    for wrong in ("0/4", "5/4", "2", "one/two", ""):
        with pytest.raises(ValueError, match="no part of a run"):
            share(specimens, honest, wrong)


def test_only_what_may_rest_on_a_defence_is_judged_again_without_it(tmp_path: Path) -> None:
    assert set(RESTS_ON) == set(DEFENCES)
    rows = tmp_path / "rows.jsonl"
    codes = {"softmax, plain": ["passed"], "zeros, 1": ["wrong", "wrong:own draw"], "pointer cache, 1": ["void"]}
    kinds = {name: "twin" if "plain" in name else "specimen" for name in (*codes, "gelu, plain")}
    rows.write_text(
        "".join(
            json.dumps(
                {
                    "device": "cpu",
                    "kind": kind,
                    "name": name,
                    "codes": codes.get(name, ["passed"]),
                    "reason": "",
                    "stage_s": {},
                }
            )
            + "\n"
            for name, kind in kinds.items()
        )
    )
    first = read([rows])
    again = {d: [t.name for group in resting_on(d, first).values() for t in group] for d in DEFENCES}
    assert again["own draws"] == ["softmax, plain", "zeros, 1"]
    assert again["fresh content"] == ["gelu, plain", "pointer cache, 1"]
    assert again["repeats"] == []


def test_the_command_judges_specimens_and_twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "open_judge", kept_judge)
    only = [word for idea in QUICK for word in ("--only", idea)]
    report = tmp_path / "zoo.md"
    done = inside(tmp_path, "zoo", "--quick", "--json", *only, "--report", report)
    rows = done.rows
    assert [row.pop("schema") for row in rows] == [JSON_SCHEMA] * len(rows)
    assert [row.pop("type") for row in rows] == ["specimen"] * (len(rows) - 1) + ["zoo_summary"]
    odd = [row for row in rows[:-1] if not row["ok"]]
    assert odd == [], done.err
    assert done.code == 0
    assert set(rows[-1]) == {"specimens", "caught", "right_reason", "honest", "false_rejects", "false_flags"}
    assert rows[-1]["specimens"] == rows[-1]["caught"] == rows[-1]["right_reason"] >= len(QUICK)
    assert rows[-1]["honest"] >= len({row["name"] for row in rows[:-1] if row["kind"] == "twin"}) > 0
    assert "Catch rate by family" in report.read_text()
    assert any(VOID in row["codes"] for row in rows[:-1])
    halves = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for file, lines in zip(halves, (done.out.splitlines()[:9], done.out.splitlines()[5:]), strict=True):
        file.write_text("\n".join(lines))
    assert summary(read(halves)) == rows[-1], "the same report from overlapping parts"
