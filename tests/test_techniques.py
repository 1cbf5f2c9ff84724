"""Cards of technique: seeds, evidence from lineage, weights, the choice for a prompt, bundles, runs."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
from cli_home import RELU, RIGHT, inside, model
from factories import attempt, device, edge, linear_problem, passed, problem, run

from rag_kernels.archive.audit import verify
from rag_kernels.archive.bundle import WITH_SIZES, WITH_TECHNIQUES, export, import_bundle
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.store import open_archive
from rag_kernels.archive.techniques import Evidence, KnownTechnique, Technique, add_techniques, known_techniques
from rag_kernels.eval.records import Candidate, FunctionalProblem, TensorSpec
from rag_kernels.feedback.bottleneck import Bottleneck
from rag_kernels.options import Options
from rag_kernels.retrieval.card_sizes import Extent
from rag_kernels.retrieval.cards import UNPROVEN, cards_for, told_evidence, weight
from rag_kernels.retrieval.distil import distil, seeds, uses
from rag_kernels.retrieval.starter import BUNDLE
from rag_kernels.run.technique_cards import TechniqueCards

HOPPER = Path(__file__).parents[1] / "examples" / "hopper"
VECTORS = "Several accumulators for a reduction that SIMD should do"
MEMORY = Bottleneck("memory", "memory")
PLAIN = (
    '#include "rag_kernel.h"\nvoid f(rk::Tensor<float> y) { /* NUMBER */ for (int i = 0; i < 9; ++i) y.data[i] = i; }\n'
)
SIMD = PLAIN.replace("for (", "\n#pragma omp simd reduction(+ : s)\nfor (")


def source(text: str, number: int) -> Candidate:
    return Candidate(
        text.replace("NUMBER", f"{number} */ int own = {number}; /*") + "RK_EXPORT(forward, f)\n", "kernel", "cpu"
    )


class Lineage:
    """An archive of parents and children, a line each."""

    def __init__(self) -> None:
        self.archive, self.number = MemoryArchive(), 0
        self.archive.start_run(run("r"))

    def judge(self, fp: FunctionalProblem, made: Candidate, us: float, *parents: str, idea: str, **more: object) -> str:
        self.number += 1
        verdict = passed(100.0 / us, confirmed=True)
        verdict = replace(verdict, measurement=replace(verdict.measurement, candidate_us=us))
        edges = tuple(edge(made.id, parent) for parent in parents)
        tried = attempt("r", self.number, fp, candidate=made, verdict=verdict, parents=edges, idea=idea)
        self.archive.record_attempt(replace(tried, **more))  # type: ignore[arg-type]
        return made.id

    def step(self, fp: FunctionalProblem, us: float, idea: str = "vectors", text: str = SIMD) -> tuple[str, str]:
        """Record a parent of 100 us, and a child that takes `us`."""
        parent = self.judge(fp, source(PLAIN, self.number), 100.0, idea="plain")
        return parent, self.judge(fp, source(text, self.number), us, parent, idea=idea)

    def known(self, title: str = VECTORS) -> KnownTechnique:
        distil(self.archive)
        return next(one for one in known_techniques(self.archive) if one.technique.title == title)


def test_seeds_are_cards_that_can_be_recognised() -> None:
    titles = [seed.title for seed in seeds()]
    assert len(set(titles)) == len(titles) >= 15
    for seed in seeds():
        assert seed.signs and all(re.compile(sign) for sign in seed.signs) and len(seed.advice) < 500
        assert not re.search(r"\d(x| times| ?%)", seed.advice), "nobody measured that here"


@pytest.mark.parametrize(
    ("kernel", "begins"),
    [
        ("product_fp16_tma_wgmma", ("A ring of stages", "wgmma")),
        ("attention_causal_bf16_d64_wgmma", ("A ring of stages", "wgmma")),
        ("rms_norm_bf16_rows", ("A row in registers", "Loads and stores")),
        ("triangle_update_three_tf32", ("Float32 products",)),
        ("int8_weights_16_rows", ("Narrow weights",)),
        ("prefix_sum_look_back", ("Prefix sums in one pass",)),
    ],
)
def test_kernels_are_known_by_the_techniques_that_they_use(kernel: str, begins: tuple[str, ...]) -> None:
    text = (HOPPER / f"{kernel}.cu").read_text()
    found = [seed.title for seed in seeds() if "cuda" in seed.backends and uses(text, seed.signs)]
    assert all(any(title.startswith(begin) for title in found) for begin in begins), found
    if "wgmma" not in kernel:
        assert not any(title.startswith(("wgmma", "A ring")) for title in found)


def test_lineage_proves_a_card_or_speaks_against_it() -> None:
    lineage = Lineage()
    assert told_evidence(lineage.known()) == "not measured here" and weight(lineage.known()) == UNPROVEN
    parent, child = lineage.step(problem("tanh"), 50.0)
    lineage.step(problem("relu"), 99.0)  # noise
    known = lineage.known()
    [proof] = known.evidence
    assert (proof.child, proof.parent, proof.gain, proof.problem_name) == (
        child,
        parent,
        2.0,
        problem("tanh").problem.name,
    )
    held = weight(known)
    assert held > 1 > UNPROVEN and "made 1 of 1 kernels faster than the same without it" in told_evidence(known)
    _, loser = lineage.step(problem("exp"), 200.0)
    known = lineage.known()
    assert weight(
        known
    ) < held and f"did not pay on {problem('exp').problem.name} (0.50 times, {loser})" in told_evidence(known)
    assert distil(lineage.archive) == (0, 0) and verify(lineage.archive) == []
    lineage.archive.retract(child, "wrong after all")
    assert [proof.child for proof in lineage.known().evidence] == [loser]


def test_what_a_parent_does_already_proves_nothing_nor_does_what_was_in_view() -> None:
    lineage = Lineage()
    fp = problem("tanh")
    parent = lineage.judge(fp, source(SIMD, 1), 100.0, idea="vectors")
    lineage.judge(fp, source(SIMD, 2), 50.0, parent, idea="more of it")
    seen = edge(source(SIMD, 3).id, parent, "retrieved")
    lineage.judge(fp, source(SIMD, 3), 50.0, idea="seen", parents=(seen,))
    commented = source(PLAIN.replace("for (", "// omp simd reduction\nfor ("), 4)
    lineage.judge(fp, commented, 50.0, lineage.judge(fp, source(PLAIN, 5), 100.0, idea="plain"), idea="talk")
    assert lineage.known().evidence == ()


def test_a_child_that_gives_a_technique_up_speaks_for_it_or_against_it() -> None:
    lineage = Lineage()
    user = lineage.judge(problem("tanh"), source(SIMD, 1), 50.0, idea="vectors")
    plain = lineage.judge(problem("tanh"), source(PLAIN, 2), 100.0, user, idea="Tune: vector 4 -> 1.")
    [proof] = lineage.known().evidence
    assert (proof.child, proof.parent, proof.gain) == (user, plain, 2.0)


def test_a_pair_that_differs_by_several_cards_proves_none_unless_one_is_for_its_problem() -> None:
    lineage = Lineage()
    lineage.known()
    others = {"row_sizes": (1 << 20,)}, {"operators": ("conv",)}, {"dtypes": ("bfloat16",)}
    right = Technique("right", "", operators=("activation",), signs=("omp simd",))
    cards = [replace(right, title=f"{more}", **more) for more in others]
    add_techniques(lineage.archive, [*cards, right])
    lineage.step(problem("tanh"), 50.0)
    assert [len(lineage.known(card.title).evidence) for card in (*cards, right)] == [0, 0, 0, 1]
    assert not lineage.known().evidence  # of reductions, and here is none
    add_techniques(lineage.archive, [replace(right, title="as good")])
    lineage.step(problem("relu"), 50.0)
    assert len(lineage.known("right").evidence) == 1 and not lineage.known("as good").evidence


def test_an_idea_that_gained_on_several_problems_becomes_a_card() -> None:
    lineage = Lineage()
    for name, us in (("tanh", 50.0), ("relu", 70.0), ("exp", 150.0)):
        lineage.step(problem(name), us, idea="Skip rows of zeros.", text=PLAIN)
    lineage.step(problem("sigmoid"), 40.0, idea="Once only.", text=PLAIN)
    for name in ("tanh", "relu"):
        lineage.step(problem(name, 3.0), 50.0, idea="Tune: tile 4096 -> 1024.", text=PLAIN)
    known = lineage.known("Skip rows of zeros.")
    assert not [one for one in known_techniques(lineage.archive) if one.technique.title.startswith("Tune")]
    assert cards_for([KnownTechnique(Technique("Tune: tile 4096 -> 1024.", ""))], problem(), device(), MEMORY) == []
    assert known.technique.origin == "lineage" and sorted(proof.gain < 1 for proof in known.evidence) == [
        False,
        False,
        True,
    ]
    assert "Once only." not in [one.technique.title for one in known_techniques(lineage.archive)]


def test_a_card_that_does_not_help_loses_its_weight() -> None:
    lineage = Lineage()
    card = lineage.known().technique
    assert weight(lineage.known()) == UNPROVEN
    for number in range(6):
        lineage.judge(problem("tanh"), source(PLAIN, 50 + number), 400.0, idea="seen", techniques=(card.id,))
    lost = lineage.known()
    assert (lost.shown, lost.won) == (6, 0) and weight(lost) < UNPROVEN / 2
    for number in range(20):
        lineage.judge(problem("tanh"), source(PLAIN, 70 + number), 20.0, idea="seen", techniques=(card.id,))
    assert weight(lineage.known()) > UNPROVEN > weight(lost)
    assert "of 26 attempts that were shown it 20 beat PyTorch" in told_evidence(lineage.known())
    alone = replace(lineage.known(), shown=1, won=0)
    assert "the attempt that was shown it did not beat PyTorch" in told_evidence(alone)


def test_a_revised_card_takes_the_place_of_the_first() -> None:
    archive = MemoryArchive()
    for advice in ("one", "two"):
        add_techniques(archive, [Technique("Do it", advice)])
    [known] = known_techniques(archive)
    assert known.technique.advice == "two" and add_techniques(archive, [Technique("Do it", "two")]) == 0


def test_the_starters_lineage_proves_cards_on_gpus() -> None:
    archive = MemoryArchive()
    import_bundle(archive, BUNDLE, trust_bundle=True)
    distil(archive)
    proofs = [proof for one in known_techniques(archive) for proof in one.evidence if "NVIDIA" in proof.device_name]
    assert len({proof.problem_name for proof in proofs}) > 3 and len({proof.gain > 1 for proof in proofs}) == 2


def test_cards_fit_the_device_the_operators_and_the_bottleneck() -> None:
    def found(*cards: Technique, kind: str = "memory", backend: str = "cpu") -> list[str]:
        known = [KnownTechnique(card, (Evidence("k_1", "k_0", "d", 1.4),)) for card in cards]
        held = replace(MEMORY, kind=kind)  # type: ignore[arg-type]
        return [c.title for c in cards_for(known, problem("tanh"), device(backend), held)]  # type: ignore[arg-type]

    right = Technique("right", "", bottlenecks=("memory",), operators=("activation",))
    anywhere = Technique("anywhere", "")
    gpu, half = replace(right, title="gpu", backends=("cuda",)), replace(right, title="half", dtypes=("bfloat16",))
    other, hopper = (
        replace(right, title="other", operators=("matmul",)),
        replace(gpu, title="hopper", architectures=("sm_9",)),
    )
    everything = (anywhere, other, gpu, half, hopper, right)
    assert found(*everything) == ["right", "anywhere"]
    assert found(*everything, kind="arithmetic") == ["anywhere", "right"]
    assert set(found(*everything, backend="cuda")) <= {"right", "gpu", "hopper", "anywhere"}
    assert "hopper" not in found(replace(hopper, architectures=("sm_100",)), right, backend="cuda")
    assert found(*(replace(right, title=f"{n}") for n in range(9))) == ["0", "1", "2"]


def test_a_card_may_ask_for_two_operators_and_for_the_dtype_of_what_is_read() -> None:
    def shown(card: Technique, fp: FunctionalProblem) -> list[str]:
        return [one.why for one in cards_for([KnownTechnique(card)], fp, device(), MEMORY)]

    both = Technique("both", "", operators=("attention", "activation+matmul"))
    assert shown(both, linear_problem()) == ["for activation with matmul"] and shown(both, problem("relu")) == []
    asked = problem("relu")
    half = replace(asked.arguments[0], spec=TensorSpec((64, 1024), "float16"))
    widening = replace(asked, arguments=(half,), features=replace(asked.features, dtypes=("float16", "float32")))
    assert asked.outputs[0].dtype == "float32"
    cards = [Technique(dtype, "", dtypes=(dtype,)) for dtype in ("float16", "float32")]
    assert [len(shown(card, widening)) for card in cards] == [1, 0]


def test_sizes_where_a_card_held_and_where_not_are_told_and_weigh() -> None:
    lineage = Lineage()
    for rows, us in ((8192, 50.0), (32768, 70.0), (192, 180.0), (256, 150.0)):
        lineage.step(problem("tanh", shape=((1 << 22) // rows, rows)), us)
    known = lineage.known()
    assert "at rows of 8 K to 32 K, " in told_evidence(known) and "at rows of 192 to 256, " in told_evidence(known)
    long, near, short = (weight(known, Extent(row, 1 << 22)) for row in (16384, 4096, 128))
    assert long > near > weight(known) > short and short < UNPROVEN < long


def test_a_card_for_other_sizes_is_shown_where_it_held_all_the_same() -> None:
    card = Technique("long rows", "", row_sizes=(8192, 65536), tensor_sizes=(1 << 20,))

    def shown(rows: int, *proofs: Evidence) -> list[str]:
        cards = cards_for([KnownTechnique(card, proofs)], problem("tanh", shape=(1 << 12, rows)), device(), MEMORY)
        return [one.sizes for one in cards]

    told = ["rows of 8 K to 64 K elements; tensors of 1 M elements or more"]
    assert shown(16384) == told and shown(192) == [] == shown(1 << 17)
    assert shown(192, Evidence("k_1", "k_0", "d", 2.0, shapes=((1 << 12, 192),))) == told
    assert cards_for([KnownTechnique(card)], problem("tanh", shape=(8192,)), device(), MEMORY) == []


def test_cards_of_an_archive_without_sizes_keep_their_ids() -> None:
    archive = MemoryArchive()
    add_techniques(archive, [Technique("Do it", "one")])
    with archive.database.write() as con:
        con.execute("UPDATE techniques SET row_sizes = NULL, tensor_sizes = NULL")
    [known] = known_techniques(archive)
    assert known.technique == Technique("Do it", "one") and verify(archive) == []


def test_what_is_left_out_proves_nothing_to_an_ablation() -> None:
    lineage = Lineage()
    lineage.step(problem("tanh"), 50.0)
    lineage.known()
    asked, options = problem("tanh"), Options(retrieval="hybrid+cards")
    softmax = replace(seeds()[0], title=VECTORS)
    assert softmax  # the family of tanh has no card of its own, so the evidence is looked at by itself

    def proofs(leave_out: str, name: str) -> int:
        chooser = TechniqueCards(lineage.archive, replace(options, leave_out=leave_out), device())  # type: ignore[arg-type]
        return sum(
            len(chooser._without_hidden(one, problem(name)).evidence) for one in known_techniques(lineage.archive)
        )

    assert (proofs("nothing", "tanh"), proofs("problem", "tanh"), proofs("problem", "relu")) == (1, 0, 1)
    assert (proofs("family", "relu"), proofs("family", "exp")) == (0, 1)
    assert TechniqueCards(lineage.archive, Options(), device())(asked, []) == []


def test_what_the_fastest_kernel_does_already_is_no_advice() -> None:
    archive, asked = MemoryArchive(), problem("relu")
    own = {name: Technique(f" {name}", "", operators=("activation",), signs=(name,)) for name in ("simd", "tiles")}
    add_techniques(archive, list(own.values()))
    chooser = TechniqueCards(archive, Options(retrieval="hybrid+cards"), device())

    def told(*sources: tuple[str, float]) -> set[str]:
        tried = [
            attempt("r", n, asked, candidate=source(text, n), verdict=passed(won))
            for n, (text, won) in enumerate(sources, start=1)
        ]
        return {card.title.strip() for card in chooser(asked, tried)} & own.keys()

    assert told() == told((PLAIN, 2.0)) == told((SIMD, 2.0), (PLAIN, 3.0)) == {"simd", "tiles"}
    assert told((SIMD, 2.0), (PLAIN, 1.5)) == {"tiles"}


def test_a_bundle_takes_proved_cards_along(tmp_path: Path) -> None:
    lineage = Lineage()
    lineage.step(problem("tanh"), 50.0)
    assert export(lineage.archive, tmp_path / "before.zip")["techniques"] == 0
    lineage.known()
    counts = export(lineage.archive, tmp_path / "with.zip")
    assert (counts["techniques"], counts["technique_evidence"]) == (1, 1)
    assert format_of(tmp_path / "with.zip") == WITH_TECHNIQUES, "no size is told, so that older versions read it"
    other = MemoryArchive()
    import_bundle(other, tmp_path / "with.zip")
    [known] = known_techniques(other)
    assert known == replace(next(k for k in known_techniques(lineage.archive) if k.evidence), shown=0, won=0)
    assert verify(other) == []
    export(other, tmp_path / "again")
    fresh = MemoryArchive()
    assert import_bundle(fresh, tmp_path / "before.zip")["kernels"] == 2 and known_techniques(fresh) == []
    with lineage.archive.database.write() as con:
        con.execute("UPDATE techniques SET row_sizes = [8]")
    export(lineage.archive, tmp_path / "sized.zip")
    assert format_of(tmp_path / "sized.zip") == WITH_SIZES


def format_of(bundle: Path) -> str:
    with ZipFile(bundle) as zipped:
        return str(json.loads(zipped.read("manifest.json"))["format"])


def test_a_run_shows_cards_and_remembers_which(tmp_path: Path) -> None:
    (tmp_path / "relu.py").write_text(RELU.problem.source)
    asked = ("--effort", "1", "--rounds", "1", "--drafts", "1", "--examples", "0", "--archive", tmp_path / "archive")
    command = ("generate", "relu.py", "--model", model(tmp_path / "model", RIGHT), "--device", "cpu", *asked)
    inside(tmp_path, *command, "--retrieval", "hybrid+cards", quick=True)
    archive = open_archive(tmp_path / "archive")
    [run] = archive.runs()
    prompts = [call.prompt for call in archive.calls(run.id)]
    assert all("# Techniques that may fit" in prompt for prompt in prompts) and prompts
    titles = {one.technique.id: one.technique.title for one in known_techniques(archive)}
    shown = [titles[card] for a in archive.attempts(run.id)[:1] for card in a.techniques]
    assert shown and all(title in prompts[-1] for title in shown)
    assert verify(archive) == []
    listed = inside(tmp_path, "archive", "cards", "--json", "--archive", tmp_path / "archive").rows
    used = {row["title"]: row["shown"] for row in listed if row["shown"]}
    assert used.keys() == set(shown) and all(not math.isnan(row["weight"]) for row in listed)
