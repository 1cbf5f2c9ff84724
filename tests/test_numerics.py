"""The ratio rule: honest rounding passes, wrong numbers do not, whatever their scale."""

import numpy as np
import pytest

from eval.content import Splice, compose, is_structured, random_recipe, rows_of
from eval.numerics import Expected, compare
from eval.records import TensorSpec
from eval.timing import pairs_for, ratio_of

RNG = np.random.default_rng(0)


def matmul_case(k: int = 512) -> tuple[Expected, np.ndarray, np.ndarray]:
    a, b = RNG.standard_normal((64, k)).astype(np.float32), RNG.standard_normal((k, 64)).astype(np.float32)
    spec = TensorSpec((64, 64), "float32")
    return Expected(spec, (a @ b).astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)), a, b


def raw(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def test_another_order_of_summation_passes() -> None:
    expected, a, b = matmul_case()
    blocked = sum(a[:, i : i + 64] @ b[i : i + 64] for i in range(0, 512, 64))
    assert compare(raw(np.asarray(blocked, np.float32)), expected).ok


def test_half_precision_operands_fail_even_where_allclose_at_1e_2_would_pass() -> None:
    expected, a, b = matmul_case()
    cheat = (a.astype(np.float16).astype(np.float32) @ b.astype(np.float16).astype(np.float32)).astype(np.float32)
    result = compare(raw(cheat), expected)
    assert np.allclose(cheat, expected.oracle, rtol=1e-2, atol=1e-1)
    assert not result.ok
    assert result.ratio > 64


def test_one_wrong_row_cannot_hide() -> None:
    oracle = RNG.standard_normal((1000, 512))
    spec = TensorSpec((1000, 512), "float32")
    got = oracle.astype(np.float32)
    expected = Expected(spec, got.astype(np.float64), oracle)
    assert compare(raw(got), expected).ok
    got = got.copy()
    got[700] *= 1.0001
    result = compare(raw(got), expected)
    assert not result.ok
    assert "[700," in result.where


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_zeros_never_pass_whatever_the_scale(scale: float) -> None:
    oracle = RNG.standard_normal((8, 512)) * scale
    expected = Expected(TensorSpec((8, 512), "float32"), oracle.astype(np.float32).astype(np.float64), oracle)
    assert not compare(raw(np.zeros((8, 512), np.float32)), expected).ok


def test_nan_fails_where_the_reference_is_finite_and_is_asked_for_where_it_is_not() -> None:
    oracle = np.array([1.0, np.nan, np.inf, 2.0])
    expected = Expected(TensorSpec((4,), "float32"), oracle, oracle)
    assert compare(raw(oracle.astype(np.float32)), expected).ok
    assert not compare(raw(np.array([1.0, 0.0, np.inf, 2.0], np.float32)), expected).ok
    assert not compare(raw(np.array([np.nan, np.nan, np.inf, 2.0], np.float32)), expected).ok


def test_integers_are_exact() -> None:
    values = np.arange(10, dtype=np.int64)
    expected = Expected(TensorSpec((10,), "int64"), values, values)
    assert compare(raw(values), expected).ok
    assert not compare(raw(values + (values == 7)), expected).ok


def test_bfloat16_bytes_are_read() -> None:
    exact = RNG.standard_normal((4, 256))
    bits = (exact.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    truncated = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    expected = Expected(TensorSpec((4, 256), "bfloat16"), truncated, exact)
    assert compare(raw(bits), expected).ok
    assert not compare(raw(bits + 8), expected).ok


def test_content_is_new_for_every_recipe_and_keeps_the_values_of_the_draws() -> None:
    import random

    spec = TensorSpec((32, 8), "float32")
    draws = [RNG.standard_normal((32, 8)).astype(np.float32) for _ in range(2)]
    rows, row_bytes = rows_of(spec)
    assert (rows, row_bytes) == (32, 32)
    made = []
    for seed in range(5):
        target = np.empty((32, 8), np.float32)
        part = random_recipe([spec], [True], 2, random.Random(seed))[0]
        compose(raw(target), [raw(d) for d in draws], part, rows)
        assert np.isin(target, np.concatenate(draws)).all()
        made.append(target)
    assert all(not np.array_equal(a, b) for i, a in enumerate(made) for b in made[:i])
    plain = np.empty((32, 8), np.float32)
    compose(raw(plain), [raw(d) for d in draws], Splice(1, 0, 1, 0, 0, 0), rows)
    assert np.array_equal(plain, draws[1])


def test_structured_inputs_are_left_in_place() -> None:
    dense = RNG.standard_normal((64, 64))
    assert not is_structured(dense)
    assert is_structured(np.triu(dense))
    assert is_structured(dense + dense.T)
    assert is_structured(np.array([0, 3, 7, 9]))
    assert not is_structured(RNG.integers(0, 9, 100))


def test_the_ratio_is_the_median_of_pairs_with_its_order_statistic_interval() -> None:
    candidate = [1.0] * 30
    baseline = [1.0 + i / 30 for i in range(30)]
    ratio = ratio_of(baseline, candidate)
    assert ratio.low == sorted(baseline)[8]
    assert ratio.high == sorted(baseline)[21]
    assert ratio.low < ratio.median < ratio.high


def test_slow_pairs_are_fewer() -> None:
    assert pairs_for(0.01, least=30, most=60, target_s=0.5, limit_s=20) == 50
    assert pairs_for(1e-5, least=30, most=60, target_s=0.5, limit_s=20) == 60
    assert pairs_for(4.0, least=30, most=60, target_s=0.5, limit_s=20) == 5
