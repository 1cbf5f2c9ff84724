"""The format `wheel`: the same as torch-op for pip, for machines without a compiler.

Comes in: an attempt and a path. Goes out: a wheel whose tag says which C library its kernel needs at least.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from rag_kernels.archive.records import Attempt
from rag_kernels.export.card import Licence
from rag_kernels.export.evidence import Pulled
from rag_kernels.export.forms.portable import machine
from rag_kernels.export.forms.torch_op_package import NEEDED, content_of, libraries, name_of, summary_of
from rag_kernels.export.package import Folder

VERSION = "1"
OLDEST = (2, 17)  # of what platform tags name
METADATA = """\
Metadata-Version: 2.1
Name: {project}
Version: {version}
Summary: {summary}
License: {licence}
Requires-Python: >=3.10
{needed}
Description-Content-Type: text/markdown

{card}
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: rag-kernels
Root-Is-Purelib: false
Tag: {tag}
"""


def write_wheel(attempt: Attempt, out: Path, licence: Licence | None = None, backward: Pulled | None = None) -> Path:
    """Write the wheel into a folder, or as a file where `out` ends in .whl; return the path."""
    package = name_of(attempt)
    content = content_of(attempt, "wheel", licence, backward)
    built = libraries(attempt, backward)
    tag = f"py3-none-{platform_tag(b''.join(built.values()))}"
    info = f"{package}-{VERSION}.dist-info"
    told = METADATA.format(
        project=package.replace("_", "-"),
        version=VERSION,
        summary=summary_of(attempt),
        licence=(licence(attempt.candidate.id) if licence else "") or "Unknown",
        needed="\n".join(f"Requires-Dist: {need}" for need in NEEDED),
        card=content["CARD.md"],
    )
    files: dict[str, str | bytes] = {f"{package}/{name}": text for name, text in content.items()}
    files |= {f"{package}/{name}": library for name, library in built.items()}
    files |= {f"{info}/METADATA": told, f"{info}/WHEEL": WHEEL.format(tag=tag)}
    place = out if out.suffix == ".whl" else out / f"{package}-{VERSION}-{tag}.whl"
    place.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(place, "w", ZIP_DEFLATED) as made:
        rows = []
        for name, value in files.items():
            data = value if isinstance(value, bytes) else value.encode()
            made.writestr(_entry(name), data)
            digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}\n")
        made.writestr(_entry(f"{info}/RECORD"), "".join([*rows, f"{info}/RECORD,,\n"]))
    return place


def platform_tag(library: bytes) -> str:
    """Return the tag of machines that can load a library, by the newest version of glibc that its symbols name."""
    named = [(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", library)]
    major, minor = max([OLDEST, *named])
    return f"manylinux_{major}_{minor}_{machine()}"


def _entry(name: str) -> ZipInfo:
    """Return an entry without the time of writing, so that the same kernel makes the same wheel."""
    entry = ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.external_attr = ZIP_DEFLATED, 0o644 << 16
    return entry


PACKAGE = Folder(write=write_wheel, loaded_by="pip, then an import", with_gradients=write_wheel, names_itself=True)
