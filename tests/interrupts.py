"""Ctrl-C for what runs in the process of a test."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def ctrl_c(after_s: float) -> Iterator[None]:
    """What is in here is interrupted; also where tests run in the background, where a shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(after_s, os.kill, [os.getpid(), signal.SIGINT])
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
