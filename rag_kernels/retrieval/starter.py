"""The starter archive: kernels that come with the package, so that the first run has something to retrieve.

Comes in: an empty archive. Goes out: the same with the bundle's kernels, as claims until they are judged here. The
bundle is what `rag-kernels grow examples/` and `rag-kernels archive export` made.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from zipfile import ZipFile

from rag_kernels.archive.bundle import import_bundle
from rag_kernels.archive.protocol import Archive
from rag_kernels.ingest.description.embedder import Embedder
from rag_kernels.ingest.description.pipeline import reindex

log = logging.getLogger(__name__)

BUNDLE = Path(__file__).with_name("starter.zip")
TOLD = "The archive is new: %d kernels of the starter archive are in it now."


@functools.cache
def starter_ids(bundle: Path = BUNDLE) -> tuple[str, ...]:
    """Return ids of the kernels in the bundle, and of what they came from: sources are named so."""
    if not bundle.is_file():
        return ()
    with ZipFile(bundle) as packed:
        return tuple(Path(name).stem for name in packed.namelist() if name.startswith("sources/"))


def stock(archive: Archive, embedder: Embedder, *, bundle: Path = BUNDLE) -> int:
    """Import the starter bundle into an archive that holds nothing yet; return how many kernels came."""
    if not archive.is_empty() or not bundle.is_file():
        return 0
    kernels = import_bundle(archive, bundle)["kernels"]
    reindex(archive, embedder)
    log.info(TOLD, kernels)
    return kernels
