"""How a process ends that has loaded a candidate's library: with what this one left for the end, and nothing else.

Comes in: the library's file, before it is loaded. Goes out: nothing; `exit` of the C library then ends in it. A process
with PyTorch in it takes a fifth of a second to end whole, all but none of which is the candidate's.
"""

from __future__ import annotations

import ctypes
import os

_FINI, _FINI_ARRAY, _FINI_ARRAY_BYTES = 13, 26, 28  # tags of ELF's dynamic section
_FUNCTION = ctypes.CFUNCTYPE(None)
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
_registered: list[object] = []


class _LinkMap(ctypes.Structure):
    """The beginning of what a handle of `dlopen` points to."""

    _fields_ = (("address", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_void_p))


def end_after(library: str) -> None:
    """Let this process end once what the library registers from now on has run, and its own last functions.

    What is registered last runs first: PyTorch's, which was there before, would run after.
    """

    def end(status: int, _: object) -> None:
        try:
            for address in _last_functions(library):
                _FUNCTION(address)()
        finally:
            os._exit(status & 0xFF)

    _registered.append(handler := _HANDLER(end))
    ctypes.CDLL(None).on_exit(handler, None)


def _last_functions(library: str) -> list[int]:
    """Return the addresses of a loaded library's last functions, in the order in which they run."""
    handle = ctypes.CDLL(library, os.RTLD_NOW | os.RTLD_NOLOAD)._handle
    loaded = ctypes.cast(handle, ctypes.POINTER(_LinkMap)).contents
    words = ctypes.cast(loaded.dynamic, ctypes.POINTER(ctypes.c_size_t))
    found: dict[int, int] = {}
    at = 0
    while words[at]:
        found.setdefault(words[at], words[at + 1])
        at += 2
    count = found.get(_FINI_ARRAY_BYTES, 0) // ctypes.sizeof(ctypes.c_size_t)
    start = loaded.address + found.get(_FINI_ARRAY, 0)
    last = list((ctypes.c_size_t * count).from_address(start))[::-1] if count else []
    return last + [loaded.address + found[_FINI]] * (_FINI in found)
