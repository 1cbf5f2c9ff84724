"""What is computed in the precision that is allowed is right on whatever a judge draws, and fewer bits are not."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from judging import BRIEF
from support.kept import kept_judge

BENCH = Path(__file__).parent / "bench"


@pytest.fixture
def stress(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return import_module("allowed_precision")


@pytest.mark.parametrize(("name", "precision"), [("tanh", "tf32"), ("softmax in bf16", "strict")])
def test_what_is_allowed_is_refused_on_no_content_and_fewer_bits_are(
    stress: ModuleType, name: str, precision: str
) -> None:
    chain = next(chain for chain in (*stress.PRODUCTS, *stress.HALVES) if chain.name == name)
    with kept_judge("cpu", limits=replace(BRIEF, precision=precision, without=stress.WITHOUT)) as judge:
        rows = list(stress.rows_of(judge, chain, 1))
    honest, others = ([row for row in rows if row.honest == is_honest] for is_honest in (True, False))
    assert [row.calls > 20 and not row.refused for row in honest] == [True] * len(honest), honest
    assert honest and others and all(row.refused for row in others), others
    (line,) = list(stress.table(rows))[2:]
    assert line.startswith(f"| {name} | {sum(row.calls for row in honest)} | {len(honest)} | 0 |")
