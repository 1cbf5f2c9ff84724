"""From a live module to one that runs a kernel; keywords that are held to the command line's ranges."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_home import quick_limits
from factories import attempt, candidate, passed, problem, wrong

import rag_kernels
from rag_kernels import wiring
from rag_kernels.archive.records import Attempt
from rag_kernels.best import Best
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import Candidate, FunctionalProblem, Judged, Passed, ProblemError
from rag_kernels.ingest.live.live_module import problem_of_module
from rag_kernels.options import OptionError, Options
from rag_kernels.scripted import ScriptedJudge, ScriptedWriter


class Norm(torch.nn.Module):
    """Scale rows to a root mean square of 1."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Masked(torch.nn.Module):
    """Nested modules, a mask, and indices."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
        self.register_buffer("table", torch.randn(5, 8))
        self.register_buffer("turns", torch.rand(8), persistent=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.where(mask, self.inner(x), x).masked_fill(x > 1, float("-inf"))
        places = torch.arange(x.shape[0], device=x.device)[:, None] * torch.tensor(0.5)
        return hidden * 0.5 + (places * self.get_buffer("turns")).float(), self.get_buffer("table")[index]


class Scan(torch.nn.Module):
    """A loop over a dimension, which a trace has at one length."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            held = held * 0.5 + x[:, step]
        return held


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.other = Norm(256), Norm(256), Norm(256, eps=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.other(self.second(self.first(x)))
        return found


def test_a_problem_of_a_module_computes_the_same_with_its_parameters() -> None:
    module, x = Masked().eval(), torch.randn(4, 8)
    inputs = [x, x > 0, torch.tensor([0, 4, 2])]
    made = problem_of_module(module, inputs)
    assert made.name == "masked"
    text = load_module("masked", made.source)
    model = text.Model()
    assert model.load_state_dict(module.state_dict())
    for one, other in zip(model(*inputs), module(*inputs), strict=True):
        assert torch.equal(one, other)
    drawn = text.get_inputs()
    assert [(value.shape, value.dtype) for value in drawn] == [(value.shape, value.dtype) for value in inputs]
    assert int(drawn[2].max()) <= 4
    elsewhere = text.Model().to("meta")(*(value.to("meta") for value in inputs))
    assert [(value.shape, value.device.type) for value in elsewhere] == [((4, 8), "meta"), ((3, 8), "meta")]


def test_a_recorded_text_knows_at_which_sizes_and_types_it_is_the_module() -> None:
    recorded = {
        Scan(): ([torch.randn(4, 3)], ["float[?, 3]"]),
        Norm(8): ([torch.randn(4, 8)], ["float[?, 8]"]),
        Masked().eval(): (
            [torch.randn(4, 8), torch.ones(4, 8) > 0, torch.zeros(3).long()],
            ["float32[4, 8]", "bool[4, 8]", "int64[?]"],
        ),
    }
    for module, (inputs, said) in recorded.items():
        made = problem_of_module(module, inputs)
        found = load_module("recorded", made.source).RECORDED_FOR
        assert found == said


def test_what_cannot_be_traced_is_a_sentence() -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(ProblemError, match="cannot be traced"):
        problem_of_module(Branch(), [torch.ones(3)])
    with pytest.raises(ProblemError, match=r"norm does not run with these inputs \(RuntimeError: The size of tensor a"):
        problem_of_module(Norm(4), [torch.ones(3, 5)])
    with pytest.raises(ProblemError, match="must be a list of tensors"):
        problem_of_module(Norm(4), [3.0])  # type: ignore[list-item]
    with pytest.raises(ProblemError, match="eval mode"):
        problem_of_module(torch.nn.BatchNorm1d(4), [torch.ones(3, 4)])


def test_a_trace_that_fails_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.ERROR, log.name), pytest.raises(ProblemError, match="does not run with these"):
            problem_of_module(torch.nn.Linear(3, 3), [torch.ones(2, 4)])
    finally:
        log.removeHandler(caplog.handler)
    assert [record for record in caplog.records if record.name == log.name] == []


@pytest.fixture(scope="module")
def best() -> Best:
    seen: list[Attempt] = []
    module = Norm(256)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "Limits", quick_limits)
        found = rag_kernels.optimize(
            module, [torch.randn(2048, 256)], device="cpu", effort=1, rounds=1, drafts=1, archive=":memory:",
            retrieval="off", progress=seen.append,
        )  # fmt: skip
    assert tuple(seen) == found.attempts
    return found


def test_the_module_runs_the_kernel_and_falls_back(best: Best) -> None:
    assert best.attempt is not None and best.speedup is not None and best.speedup > 0
    fast, x = best.optimized(), torch.randn(2048, 256)
    with torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(fast(x), best.module(x))
        with pytest.warns(UserWarning, match="is not used"):
            assert torch.equal(fast(x.double()), best.module(x.double()))
        best.module.get_parameter("weight").mul_(2.0)  # the kernel is given what the module holds now
        torch.testing.assert_close(fast(x), best.module(x))


def test_apply_replaces_what_is_alike_and_nothing_else(best: Best) -> None:
    model, x = Model(), torch.randn(2048, 256)
    with torch.no_grad():
        before = model(x)
        assert rag_kernels.apply(model, [best]) == ["first", "second"]
        torch.testing.assert_close(model(x), before)
    assert isinstance(model.other, Norm)


def test_it_is_saved_and_explained(best: Best, tmp_path: Path) -> None:
    saved = best.save(tmp_path / "best.py")
    text = load_module("best", saved.read_text())
    x = torch.randn(2048, 256)
    model = text.ModelNew()
    model.load_state_dict(best.module.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(x), best.module(x))
        with pytest.warns(UserWarning, match="is not used"):
            assert torch.equal(model(x.double()), best.module(x.double()))
        for graph in (model, torch.compile(model, backend="eager")):
            with pytest.raises(ValueError, match=r"this file's forward was recorded for float\[\?, 256\]"):
                graph(x[:, :128])
    with pytest.raises(ProblemError, match="its folder does not exist"):
        best.save(tmp_path / "nowhere" / "best.py")
    told = best.explain()
    assert best.attempt is not None and best.attempt.candidate.id in told and "  1  passed" in told


def test_a_repr_is_a_line_and_a_notebook_has_a_table(best: Best) -> None:
    assert "\n" not in repr(best) and repr(best.attempts[0]).startswith("<Attempt 1 of norm: passed, at least ")
    assert repr(attempt(verdict=wrong())) == f"<Attempt 1 of scaled_relu: wrong, kernel {candidate().id}>"
    table = best._repr_html_()
    assert table.count("<tr>") == 1 + len(best.attempts) and "over torch.compile" in table


def test_one_kernel_is_chosen_for_all_workloads() -> None:
    class ByRows(ScriptedJudge):
        """The quicker kernel is wrong for eight rows."""

        def _verdict(self, problem: FunctionalProblem, one: Candidate, *, confirmed: bool) -> Judged:
            rows, quick = problem.outputs[0].shape[0], "quick" in one.source
            right = passed(3.0 if quick else 2.0, confirmed=confirmed)
            return self.judged_as(wrong() if quick and rows == 8 else right)

        def judge(self, problem: FunctionalProblem, candidates: Any, more: Any = None) -> Iterator[Any]:
            for one in candidates:
                yield one, self._verdict(problem, one, confirmed=False)

        def confirm(self, problem: FunctionalProblem, candidate: Candidate) -> Judged:
            return self._verdict(problem, candidate, confirmed=True)

    writer = ScriptedWriter([candidate(variant=1).source + "// quick", candidate(variant=2).source])
    calls = [torch.randn(rows, 256) for rows in (64, 8, 2)]
    found = rag_kernels.optimize(
        Norm(256), calls[:1], workloads=[[x] for x in calls[1:]], device="cpu", archive=":memory:", retrieval="off",
        writer=writer, judge=ByRows(),
    )  # fmt: skip
    assert found.attempt is not None and "quick" not in found.attempt.candidate.source
    assert "quick" in rag_kernels.winner(found.attempts).candidate.source  # type: ignore[union-attr]
    assert [one.workload.name for one in found.served] == ["X_0=64", "X_0=8", "X_0=2"]
    verdict = found.attempt.judged.verdict
    assert isinstance(verdict, Passed) and verdict.contract is not None
    assert verdict.contract.tensors[0].shape == ("N", "256") and "3 of 3 workloads passed" in found.explain()
    with pytest.raises(ProblemError, match="cannot serve all workloads by one kernel: 1 calls with other"):
        rag_kernels.optimize(Norm(256), calls[:1], workloads=[[calls[1].double()]], archive=":memory:")


def test_without_a_kernel_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    none = Best(Norm(4), problem().problem, (), None)
    for use in (none.optimized, lambda: none.save(tmp_path / "best.py")):
        with pytest.raises(ProblemError, match="no verified kernel: raise `effort`"):
            use()
    assert rag_kernels.apply(Model(), [none]) == [] and none.speedup is None and "No verified kernel" in none.explain()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "gpu"}, "device='gpu' is not known: it is one of 'auto', 'cpu', 'cuda'."),
        ({"effort": 99}, "effort=99 is out of range: it is from 1 to 9."),
        ({"rounds": 0}, "rounds=0 is out of range: it is 1 or more."),
        ({"temperatures": [3.0]}, "are out of range"),
        ({"budget_usd": -1}, "budget_usd=-1 is out of range"),
        ({"retrieval": "best"}, "is one of 'off', 'random'"),
        ({"seed": "a"}, "seed='a' is not a whole number."),
        ({"effort": True}, "effort=True is not a whole number."),
        ({"rounds": 1.5}, "rounds=1.5 is not a whole number or None."),
        ({"temperatures": "0.7"}, "temperatures='0.7' is not a sequence, each of it a number."),
        ({"efort": 3}, "There is no option 'efort'; did you mean 'effort'?"),
    ],
)
def test_a_wrong_option_is_told_before_anything_runs(options: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said.replace("?", r"\?").replace(".", r"\.")):
        rag_kernels.generate("examples/rmsnorm.py", **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        rag_kernels.optimize(Norm(4), [torch.ones(2, 4)], **options)  # type: ignore[arg-type]


def test_what_is_no_module_file_run_or_function_is_told_before_the_first_attempt(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="no problem file"):
        rag_kernels.generate("missing.py")
    with pytest.raises(ProblemError, match="no run 'r_none' of rmsnorm to resume"):
        rag_kernels.generate("examples/rmsnorm.py", archive=tmp_path, resume="r_none")
    with pytest.raises(OptionError, match="takes a module, not 'rmsnorm'"):
        rag_kernels.optimize("rmsnorm", [torch.ones(2, 4)])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="progress=3 cannot be called"):
        rag_kernels.optimize(Norm(4), [torch.ones(2, 4)], progress=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="archive=3 is neither a folder"):
        rag_kernels.optimize(Norm(4), torch.ones(2, 4), archive=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="example_inputs='x' is no call"):
        rag_kernels.optimize(Norm(4), "x")  # type: ignore[arg-type]


def test_one_model_by_its_name() -> None:
    assert Options(models="cmd:true").models == ("cmd:true",)  # type: ignore[arg-type]
    assert Options(models=["a", "b"]).models == ("a", "b")  # type: ignore[arg-type]


def test_the_public_names_are_listed() -> None:
    assert dir(rag_kernels) == sorted(rag_kernels.__all__)
