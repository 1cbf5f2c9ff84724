"""Where tensors lie in memory that the judge and a worker share."""

import os
import random
from itertools import pairwise

import pytest
import torch

from rag_kernels.eval.buffers.shared_arena import (
    ALIGN,
    HEAP,
    LOW_HEAP,
    Arena,
    anywhere,
    as_allocated,
    attach,
    tensor_bytes,
    usual_address,
)
from rag_kernels.eval.records import TensorSpec

SPECS = (
    TensorSpec((3, 5), "float32"),
    TensorSpec((1024,), "float32"),
    TensorSpec((7,), "bool"),
    TensorSpec((), "int64"),
)


@pytest.mark.parametrize("step", [64, 0])
def test_tensors_lie_within_their_pages_and_what_is_around_them_is_seen(step: int) -> None:
    for seed in range(20):
        arena = Arena(SPECS, begins=anywhere(SPECS, step, random.Random(seed)))
        arena.whole()[:] = 0x5A
        views = attach(os.dup(arena.fd), arena.describe(), writable=True, guarded=True)
        for index, (view, spec) in enumerate(zip(views, SPECS, strict=True)):
            begin, end = view.data_ptr(), view.data_ptr() + tensor_bytes(spec)
            assert begin % (step or view.element_size()) == 0 and begin % ALIGN and end % ALIGN
            assert step or begin // view.element_size() % 2, "at an odd element"
            view.zero_()
            assert not arena.bytes(index).any() and (arena.slack(index) == 0x5A).all()
            assert (len(arena.slack(index)) + tensor_bytes(spec)) % ALIGN == 0
        arena.close()


def test_large_tensors_begin_where_pytorch_has_them() -> None:
    """At one place in their pages, which is that of a large tensor of this process; small ones begin anywhere.

    One that the heap has room for lies there: the last of many has a mapping of its own.
    """
    specs = (TensorSpec((1 << 20,), "float32"), TensorSpec((1 << 18,), "bool"), TensorSpec((16,), "float32"))
    places = [as_allocated(specs, random.Random(seed)) for seed in range(8)]
    held = [torch.empty(1 << 24) for _ in range(64)]
    assert {(large, other) for large, other, _ in places} == {(held[-1].data_ptr() % ALIGN,) * 2}
    assert len({small for _, _, small in places}) > 1


def test_tensors_lie_where_a_heap_may_be_and_one_may_be_given_for_several() -> None:
    specs = (*SPECS, SPECS[0])
    for low, (least, most) in ((True, LOW_HEAP), (False, HEAP)):
        for seed in range(16):  # the heap of this process may be at some of these places
            arena = Arena(specs, same=(0, 1, 2, 3, 0), address=usual_address(1 << 20, random.Random(seed), low=low))
            views = attach(os.dup(arena.fd), arena.describe(), writable=True, guarded=True)
            assert views[4].data_ptr() == views[0].data_ptr() and views[4].shape == (3, 5)
            views[4].fill_(2)
            assert (arena.bytes(0) == arena.bytes(4)).all() and arena.bytes(0).any()
            arena.close()
            if all(least <= view.data_ptr() < most for view in views):
                break
        else:
            pytest.fail(f"none of 16 places between {least:#x} and {most:#x} is free")
    assert usual_address(1 << 33, random.Random(0), low=True) == 0, "there is no room"


def test_tensors_lie_apart_every_other_one_where_the_system_puts_it() -> None:
    arena = Arena(SPECS, address=usual_address(1 << 20, random.Random(3), low=False), apart=True)
    views = attach(os.dup(arena.fd), arena.describe(), writable=False, guarded=True)
    assert all(abs(b.data_ptr() - a.data_ptr()) > 1 << 33 for a, b in pairwise(views))
    arena.close()


def test_a_closed_arena_keeps_neither_a_descriptor_nor_its_memory() -> None:
    """Though it is still referred to: a process that had judged for long had a thousand files open."""
    before = len(os.listdir("/proc/self/fd"))
    held = []
    for _ in range(3):
        arena = Arena(SPECS)
        arena.whole()[:] = 1
        arena.close()
        held.append(arena)
    assert len(os.listdir("/proc/self/fd")) == before
    seen = Arena(SPECS)
    view = seen.bytes(0)
    seen.close()
    assert not view.any(), "a view in use stays good"
