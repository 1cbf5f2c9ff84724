"""What stands in results of many calls is told from what the first one left; no GPU is needed for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rag_kernels.eval.children.candidate.gpu_calls import LOOKED_AT, Place, Watched, in_a_row


def counting(out: torch.Tensor, wrong_at: int) -> Callable[[], None]:
    """Return a call that leaves twos, but for one element from that call on."""
    made = 0

    def call() -> None:
        nonlocal made
        made += 1
        out.fill_(2)
        if made >= wrong_at:
            out[1, 2] = 7

    return call


def test_what_differs_is_told_and_lies_in_the_place_of_the_results() -> None:
    out = torch.full((3, 4), float("nan"))
    watched = Watched(lambda: [out])
    watched.look()
    assert not watched.differ()  # NaN as before
    out[0, 0] = 1
    watched.look()
    out[0, 0] = float("nan")
    watched.look()
    assert watched.differ() and out[0, 0] == 1


def test_calls_in_a_row_end_where_one_leaves_others() -> None:
    out = torch.empty(3, 4)
    right = in_a_row(Place(counting(out, 1 << 20), lambda: [out], [out]), 150, 60)
    assert (right.times, right.differs) == (150, False) and bool((out == 2).all())
    wrong = in_a_row(Place(counting(out, LOOKED_AT + 2), lambda: [out], [out]), 1000, 60)
    assert (wrong.times, wrong.differs) == (2 * LOOKED_AT, True) and out[1, 2] == 7


def test_the_last_of_some_calls_is_looked_at_on_outputs_that_it_has_to_write() -> None:
    out, made = torch.empty(4), []

    def call() -> None:
        made.append(len(made))
        if len(made) == 1:
            out.fill_(2)

    assert in_a_row(Place(call, lambda: [out], [out]), 10, 60).differs
