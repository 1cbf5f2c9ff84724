"""Where PyTorch has no number of its own, or few: the others are compared; and which sign a zero has."""

from __future__ import annotations

import math

import torch

from rag_kernels.eval.numerics.compare import compare
from rag_kernels.eval.numerics.left_open import left_open, put_right
from rag_kernels.eval.numerics.rounding_faults import signs_of_zeros
from rag_kernels.eval.numerics.rounding_noise import RoundingNoise

RIGHT = torch.randn(40, 300, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_few_elements_without_a_digit_are_left_open_and_many_are_not() -> None:
    own = RIGHT.float()
    own[:, 7] = 1e3
    places = left_open(own, RIGHT, None)
    assert places is not None and int(places.sum()) == 40 and bool(places[:, 7].all())
    assert compare(put_right(own, RIGHT, places), put_right(own, RIGHT, places), RIGHT).ok
    own[:, :30] = 1e3
    assert left_open(own, RIGHT, None) is None and left_open(RIGHT.float(), RIGHT, None) is None


def test_what_rounding_moves_far_is_left_open_too() -> None:
    noise = torch.zeros(40, 300)
    noise[3, 4] = 1.0
    places = left_open(RIGHT.float(), RIGHT, noise)
    assert places is not None and places.nonzero().tolist() == [[3, 4]]


def test_where_pytorch_alone_has_no_number_what_is_right_is_right() -> None:
    own, got = RIGHT.float(), RIGHT.float()
    own[2, 3] = math.nan
    assert compare(got, own, RIGHT).ok and compare(own, own, RIGHT).ok
    got[2, 3] += 1
    assert not compare(got, own, RIGHT).ok
    got[2, 3] = math.inf
    assert not compare(got, own, RIGHT).ok


def test_signs_of_zeros_are_told_where_both_answers_have_one() -> None:
    right = torch.where(RIGHT < 0, 0.0, RIGHT)
    own = right.float()
    other = torch.where(RIGHT < 0, -0.0, RIGHT).float()
    assert "100.0%" in signs_of_zeros(other, own, right)
    assert not signs_of_zeros(own, own, right) and not signs_of_zeros(other, other, right)
    assert not signs_of_zeros(other, own, torch.where(RIGHT < 0, -0.0, RIGHT))  # which only one of both has


def test_rounding_moves_subnormal_numbers_by_the_least() -> None:
    least = torch.full((2000,), 2.0**-149)
    with RoundingNoise(torch.Generator().manual_seed(3), exact_stays=True):
        difference = least * 0.7 - least * 0.6  # both the least number, and neither exactly
    assert 0.1 < float((difference < 0).double().mean()) < 0.5
