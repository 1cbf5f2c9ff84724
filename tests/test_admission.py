"""Task admission: what is worth judging, and how exact it is, on real modules in real child processes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.kept import kept_workers
from typer.testing import CliRunner

from rag_kernels.cli import app
from rag_kernels.eval.admission_records import Admission
from rag_kernels.eval.machine.device import open_device
from rag_kernels.eval.numerics.compare import LIMITS, compare, ratios
from rag_kernels.eval.numerics.rounding_noise import Perturbed, through, to_tf32
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Device, FunctionalProblem, ProblemError
from rag_kernels.eval.sessions.admission import admission_file, admit, open_admission
from rag_kernels.ingest.functional.functionalize import functionalize

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
Admit = Callable[..., Admission]
TAIL = "\ndef get_init_inputs():\n    return []\n"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with kept_workers() as opened:
        yield opened


@pytest.fixture(scope="module")
def device(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> Device:
    return open_device("cpu", workers, tmp_path_factory.mktemp("device"))


def problem(workers: Workers, init: str, forward: str, inputs: str, arguments: str = "x") -> FunctionalProblem:
    source = (
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, {arguments}):\n        {forward}\n\ndef get_inputs():\n    return [{inputs}]\n{TAIL}"
    )
    return functionalize(problem_from_source("p", source), workers=workers)


@pytest.fixture
def admitted(workers: Workers, device: Device, tmp_path: Path) -> Admit:
    def make(init: str, forward: str, inputs: str, arguments: str = "x") -> Admission:
        fp = problem(workers, init, forward, inputs, arguments)
        return open_admission(admission_file(fp, device, cache=tmp_path), fp, device, workers)

    return make


def changes(admission: Admission) -> dict[str, float | None]:
    return {s.name: s.change for s in admission.examination.sensitivities}


def passing(admission: Admission) -> set[str]:
    return {row.name for row in admission.examination.null_kernels if row.passes}


def test_a_matmul_is_admitted_with_a_limit_that_catches_tf32(admitted: Admit) -> None:
    found = admitted("self.fc = nn.Linear(512, 128)", "return self.fc(x)", "torch.rand(64, 512)")
    assert not found.degenerate and found.labels == ()
    calibration = found.examination.calibration
    cheats = {c.name: c.rms for c in calibration.cheats}
    assert calibration.gap > 20
    assert 1 < calibration.noise_rms < calibration.limit_rms < cheats["TF32 operands"] < cheats["bf16 operands"]
    assert "TF32 operands" in found.explain(cheats["TF32 operands"]) or "fp16 operands" in found.explain(
        cheats["TF32 operands"]
    )
    assert found.explain(1.0) == ""
    assert passing(found) == set()
    assert all(change > 0.01 for change in changes(found).values())
    assert set(changes(found)) == {"x", "fc_weight", "fc_bias"}


def test_layernorm_has_no_products_to_cheat_with(admitted: Admit) -> None:
    found = admitted("self.norm = nn.LayerNorm(256)", "return self.norm(x)", "torch.randn(64, 256)")
    assert not found.degenerate
    assert {c.name for c in found.examination.calibration.cheats} == {"bf16 results", "fp16 results"}
    assert found.examination.calibration.gap > 20
    assert passing(found) == set()


@pytest.mark.parametrize(
    ("init", "forward", "says"),
    [
        (
            "self.fc = nn.Linear(64, 64)",
            "x = self.fc(x).amax(1, keepdim=True); return F.gelu(x - x.mean(1, keepdim=True))",
            "is zero",
        ),
        ("pass", "return torch.softmax(x, 1).sum(1).expand(4, 32)", "is one"),
        ("self.fc = nn.Linear(1, 64)", "return self.fc(x[:, :1] * 0)", "the same for any inputs"),
        ("pass", "return x.clone()", "copy of x"),
        ("pass", "return 100 + torch.sigmoid(x)", "hardly depends"),
    ],
)
def test_degenerate_problems_are_named(admitted: Admit, init: str, forward: str, says: str) -> None:
    found = admitted(init, forward, "torch.randn(32, 64)")
    assert says in found.degenerate
    assert "degenerate problem" in found.labels


def test_the_mean_of_a_group_norm_does_not_depend_on_its_input(admitted: Admit) -> None:
    init = "self.conv = nn.Conv2d(3, 8, 3); self.norm = nn.GroupNorm(2, 8)"
    found = admitted(init, "return self.norm(self.conv(x)).mean((1, 2, 3))", "torch.rand(16, 3, 32, 32)")
    assert found.degenerate and "degenerate problem" in found.labels


def test_operators_that_never_round_can_still_be_cheated_on(admitted: Admit) -> None:
    found = admitted("self.pool = nn.MaxPool2d(2)", "return F.relu(self.pool(x))", "torch.randn(4, 4, 32, 32)")
    assert {c.name for c in found.examination.calibration.cheats} == {"bf16 results", "fp16 results"}
    assert found.labels == () and 2 < found.limit_rms < 1000


def test_a_sum_that_grows_hides_no_change_of_its_start(admitted: Admit) -> None:
    assert not admitted("pass", "return x.cumsum(1)", "torch.rand(16, 20000)").degenerate


def test_an_ignored_input_is_noted_and_not_degenerate(admitted: Admit) -> None:
    found = admitted("pass", "return torch.tanh(x) + 0 * y", "torch.randn(64, 64), torch.randn(64, 64)", "x, y")
    assert not found.degenerate
    assert changes(found)["y"] == 0 and changes(found)["x"] > 0.1
    assert any("does not depend on y" in note for note in found.notes)


def test_a_parameter_that_is_only_summed_counts(admitted: Admit) -> None:
    init = "self.bias = nn.Parameter(torch.randn(64))"
    found = admitted(init, "return (x + self.bias).sum(1)", "torch.randn(32, 64)")
    assert changes(found)["bias"] > 1e-6  # two sums of 64 numbers, from seeds of the operating system


def test_results_in_fp32_of_sixteen_bits_are_calibrated_and_those_in_sixteen_bits_not(admitted: Admit) -> None:
    """A difference of two long sums: what honest orders of these leave is more than 64 times an error that is lucky."""
    forward = "return torch.relu((x.float() - y.float()).pow(2).sum(-1) - (x.float() - z.float()).pow(2).sum(-1) + 0.3)"
    inputs = ", ".join(["torch.randn(1024, 2048, dtype=torch.bfloat16)"] * 3)
    found = admitted("pass", forward, inputs, "x, y, z")
    calibration = found.examination.calibration
    assert calibration is not None and found.limit_rms is not None and found.limit_rms >= 64
    assert found.limit_rms < min(c.rms for c in calibration.cheats)
    narrow = admitted(
        "pass", "return x.float().cumsum(1).to(torch.bfloat16)", "torch.randn(64, 64, dtype=torch.bfloat16)"
    )
    assert narrow.examination.calibration is None


def test_integer_outputs_are_admitted_and_have_no_precision(admitted: Admit) -> None:
    found = admitted("pass", "return x.argmax(1)", "torch.randn(64, 100)")
    assert not found.degenerate
    assert found.examination.calibration is None and found.limit_rms is None
    assert passing(found) == set()


@pytest.mark.parametrize("draw", ["torch.rand", "torch.randn"])
def test_a_scalar_loss_is_its_own_mean_and_not_degenerate(admitted: Admit, draw: str) -> None:
    found = admitted("pass", "return F.mse_loss(x, y)", f"{draw}(512, 512), {draw}(512, 512)", "x, y")
    assert not found.degenerate
    assert {"global mean", "first row repeated"}.isdisjoint(row.name for row in found.examination.null_kernels)
    assert passing(found) == set()


def test_batch_norm_in_training_mode(admitted: Admit) -> None:
    found = admitted("self.norm = nn.BatchNorm2d(8)", "return F.relu(self.norm(x))", "torch.randn(8, 8, 16, 16)")
    assert not found.degenerate
    assert set(changes(found)) == {"x", "norm_weight", "norm_bias"}  # running statistics are not read
    assert found.examination.calibration.gap > 20
    assert passing(found) == set()


def test_in_place_operators_and_recurrent_modules_are_calibrated(admitted: Admit) -> None:
    found = admitted(
        "self.fc = nn.Linear(64, 64)", "x = self.fc(x); x.add_(1.5).mul_(x); return x.relu_()", "torch.randn(32, 64)"
    )
    assert found.examination.calibration.gap > 4
    found = admitted("self.rnn = nn.LSTM(16, 32, batch_first=True)", "return self.rnn(x)[0]", "torch.randn(4, 12, 16)")
    assert not found.degenerate
    assert found.examination.calibration.gap > 4


def test_sixteen_bit_problems_keep_the_fixed_limits(admitted: Admit) -> None:
    found = admitted("pass", "return torch.softmax(x, 1)", "torch.randn(64, 64).bfloat16()")
    assert found.examination.calibration is None
    assert not found.degenerate


def test_what_is_known_comes_from_the_cache(workers: Workers, device: Device, tmp_path: Path) -> None:
    fp = problem(workers, "pass", "return torch.exp(x)", "torch.randn(32, 32)")
    file = admission_file(fp, device, cache=tmp_path)
    first = open_admission(file, fp, device, workers)
    assert open_admission(file, fp, device, workers) == first


def test_a_random_forward_is_a_problem_error(workers: Workers, device: Device, tmp_path: Path) -> None:
    fp = problem(workers, "pass", "return F.dropout(x, 0.5, True)", "torch.randn(8, 8)")
    with pytest.raises(ProblemError, match="random"):
        open_admission(tmp_path / "x.json", fp, device, workers)


def test_an_examination_that_fails_costs_a_note(workers: Workers, device: Device, tmp_path: Path) -> None:
    fp = problem(workers, "pass", "return torch.exp(x)", "torch.randn(32, 32)")
    found = open_admission(tmp_path / "x.json", fp, device, workers, budget_s=-1)
    assert not found.degenerate and found.limit_rms is None
    assert any("no time" in note for note in found.notes)


def test_tf32_keeps_ten_bits_and_rounds_to_even() -> None:
    eps = 2.0**-10
    values = torch.tensor([1.0, 1 + eps, 1 + eps / 2, 1 + 1.5 * eps, 1 + 0.51 * eps, -3.0000001, 0.0])
    expected = torch.tensor([1.0, 1 + eps, 1.0, 1 + 2 * eps, 1 + eps, -3.0, 0.0])
    assert torch.equal(to_tf32(values), expected)


def test_a_mode_changes_results_in_place_but_never_an_argument() -> None:
    x = torch.full((4,), 1 + 2.0**-20)
    with Perturbed(results=through(torch.bfloat16)) as mode:
        y = (x * 1).view(2, 2)
        x.reshape(2, 2)
    assert mode.applied == 1
    assert torch.equal(y, torch.ones(2, 2)) and float(x[0]) > 1


def test_calibrated_limits_replace_the_fixed_ones() -> None:
    exact = torch.randn(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    reference = exact.float()
    got = (exact * (1 + 100 * 2.0**-24)).float()
    rms, largest = ratios(got, reference, exact)
    assert rms > LIMITS[4][0]
    assert not compare(got, reference, exact).ok
    assert compare(got, reference, exact, limits=(2 * rms, 2 * largest)).ok


def test_limits_too_close_for_a_cheat_leave_room_for_honest_rounding(admitted: Admit) -> None:
    found = admitted("pass", "return torch.sin(1e7 * torch.exp(x))", "torch.rand(64, 64)")
    calibration = found.examination.calibration
    assert calibration.gap < 4 and "precision-unverifiable" in found.labels
    assert calibration.limit_rms >= 2 * calibration.noise_rms
    assert admit(found.examination) == found


def test_the_command_says_what_it_found_and_how_it_ends(tmp_path: Path) -> None:
    model = "class Model(nn.Module):\n    def forward(self, x):\n        return FORMULA\n"
    inputs = "def get_inputs():\n    return [torch.randn(64, 64)]\n"
    for name, formula in (("good", "torch.softmax(x, 1)"), ("zero", "torch.relu(-x * x)"), ("broken", "x.nothing()")):
        (tmp_path / f"{name}.py").write_text(HEAD + model.replace("FORMULA", formula) + inputs + TAIL)

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["check", "--device", "cpu", *arguments])
        return done.exit_code, done.stdout

    code, text = run(str(tmp_path / "good.py"))
    assert code == 0
    for part in ("admitted", "zeros", "rejects it", "honest rounding", "limit", "bf16 results"):
        assert part in text
    code, text = run(str(tmp_path / "zero.py"))
    assert code == 1 and "degenerate" in text and "passes it" in text
    code, text = run(str(tmp_path), "--json")
    rows = {row["problem"]: row for row in map(json.loads, text.splitlines())}
    assert code == 2 and not rows["broken"]["ok"] and rows["broken"]["reason"]
    assert rows["zero"]["degenerate"] and not rows["good"]["degenerate"]
    assert rows["good"]["calibration"]["gap"] > 4 and rows["good"]["sensitivities"][0]["name"] == "x"
