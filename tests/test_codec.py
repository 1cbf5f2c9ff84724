"""Records as JSON: what a text decodes to follows from the text alone."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from importlib import import_module

import pytest

import rag_kernels
from rag_kernels.eval import codec
from rag_kernels.eval.records import Candidate


@dataclass(frozen=True)
class Told:
    source: str


def test_a_second_class_of_a_name_is_refused() -> None:
    impostor = type("Candidate", (Told,), {})
    with pytest.raises(
        TypeError, match=r"test_codec\.Candidate .* rag_kernels\.eval\.records\.Candidate has that name"
    ):
        codec.register(impostor)
    codec.register(Candidate)  # the same again does no harm
    assert codec.loads(codec.dumps(Candidate("x", "kernel", "cpu"))) == Candidate("x", "kernel", "cpu")


def test_no_two_records_of_the_package_share_a_name() -> None:
    """All that register are imported here at once, as no command does."""
    for module in pkgutil.walk_packages(rag_kernels.__path__, "rag_kernels."):
        if not {"app", "zoo"} & {*module.name.split(".")}:
            import_module(module.name)
