"""Every check and remark that the judge has made of the starter's kernels is explained to readers."""

from __future__ import annotations

from rag_kernels.archive.bundle import import_bundle
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.queries import evaluations
from rag_kernels.eval.records import OTHER_PROCESSORS, Passed
from rag_kernels.eval.traits.input_kinds import INTEGER_KINDS, MOVED, NAMED_NUMBERS, TWICE
from rag_kernels.eval.trial.check_words import meaning
from rag_kernels.eval.trial.long_use_checks import AFTER_REFUSED
from rag_kernels.retrieval.starter import BUNDLE, starter_ids


def test_no_check_is_left_without_a_word() -> None:
    archive = MemoryArchive()
    assert import_bundle(archive, BUNDLE)["kernels"] <= len(starter_ids())
    verdicts = [e.judged.verdict for name in starter_ids() for e in evaluations(archive, name)]
    said = {word for v in verdicts if isinstance(v, Passed) for word in (*v.checks, *v.labels)}
    assert len(said) > 20
    said |= {*INTEGER_KINDS, *MOVED, *TWICE, AFTER_REFUSED, NAMED_NUMBERS, "built for x86-64-v2"}
    assert [word for word in sorted(said) if not meaning(word)] == []
    told = {meaning(label) for label in (OTHER_PROCESSORS, "fragile: initcheck", "fragile: far")}
    assert len(told) == 3, "what is no matter of unusual inputs has words of its own"
    assert meaning("made of cheese") == ""
