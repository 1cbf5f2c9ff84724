"""A bounded trial of a provider that fails three times in ten; `bench/llm_faults.py` runs a longer one."""

from __future__ import annotations

from pathlib import Path

import pytest
from llm_trials import fault_trial


def test_every_good_reply_is_used_once_and_the_bill_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    books = fault_trial(tmp_path / "archive", drafts=24, seed=36)
    assert books.wrong == []
    assert books.requests >= 35 and sum(books.faults.values()) >= 8 and len(books.faults) == 5
    assert books.kernels >= 20
