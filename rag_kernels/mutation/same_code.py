"""Whether two built libraries hold the same machine code: a mutant of code that is never used is no fault.

Comes in: paths of ELF files of 64 bits. Goes out: a digest of what is executed and read, without symbols and notes.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

SECTIONS = (b".text", b".rodata", b".data", b".data.rel.ro", b".init_array", b".nv_fatbin")


def code_digest(path: Path) -> str:
    """Return a digest of the sections that hold code and constants."""
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    digest = hashlib.sha256()
    for name, _, _, _, offset, length in headers:
        text = data[names + name : data.index(b"\0", names + name)]
        if text.startswith(SECTIONS):
            digest.update(text + data[offset : offset + length])
    return digest.hexdigest()
