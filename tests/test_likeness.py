"""How alike two sources are, on kernels of the zoo."""

from rag_kernels.eval.zoo.tasks import cpp
from rag_kernels.text.likeness import NEAR_COPY, likeness

SOFTMAX = cpp("softmax")


def test_names_comments_and_spacing_make_no_difference() -> None:
    disguised = "// mine\n" + SOFTMAX.replace("total", "whole").replace("top", "peak").replace("  ", "\t")
    assert disguised != SOFTMAX and likeness(SOFTMAX, disguised) == 1.0


def test_another_algorithm_is_another_kernel() -> None:
    assert likeness(SOFTMAX, cpp("layernorm")) < 0.7 < NEAR_COPY
    assert likeness(SOFTMAX, cpp("matmul")) < 0.5
    assert likeness("", "") == 0.0
