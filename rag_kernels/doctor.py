"""Checks of what works on this machine, with the next step for what does not.

Comes in: `Options`. Goes out: one `Check` after another; each is tried, not guessed. Calls no model unless asked to.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rag_kernels.archive.records import ArchiveError
from rag_kernels.archive.store import FileArchive, open_archive
from rag_kernels.eval.build.compile import Built, Toolchain, build, toolchain, tvm_ffi_root
from rag_kernels.eval.machine.device import gpu_name, threads
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.process.sandbox import layers
from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.records import Backend, MachineError
from rag_kernels.ingest.description.embedder import EmbedderError, load_embedder
from rag_kernels.llm.client import LLM
from rag_kernels.llm.request import PROGRAM_PREFIX, load_litellm
from rag_kernels.options import Options
from rag_kernels.records import WriterError

NEEDED_DISK_BYTES = 2 << 30
KERNEL = '#include "rag_kernel.h"\nvoid f(int64_t n) { (void)n; }\nRK_EXPORT(forward, f)\n'
OPENMP_KERNEL = KERNEL.replace("(void)n", "omp_set_num_threads(n)").replace("void f", "#include <omp.h>\nvoid f")
CUDA_KERNEL = KERNEL.replace("(void)n", "k<<<n, 1>>>()").replace("void f", "__global__ void k() {}\nvoid f")


@dataclass(frozen=True, slots=True)
class Check:
    """Hold one result. `required`: CPU kernels cannot be made without it. `next_step` is empty when there is nothing
    to do.
    """

    check: str
    ok: bool
    detail: str
    next_step: str = ""
    required: bool = False


def checks(options: Options, *, probe: bool = False) -> Iterator[Check]:
    """Try everything, the quick things first; yield the results."""
    yield python()
    yield from packages()
    yield compiler()
    yield ninja()
    yield builds("tvm-ffi", KERNEL, "cpu", "C++ over the tvm-ffi header", required=True)
    yield builds("openmp", OPENMP_KERNEL, "cpu", "C++ with OpenMP", required=True)
    yield nvcc()
    yield gpu()
    yield workers()
    yield sandbox()
    yield embedder(options)
    yield archive(options)
    yield disk()
    yield from llm(options, probe=probe)


def ready(found: Sequence[Check]) -> bool:
    """Return whether kernels for the CPU can be made here."""
    return all(check.ok for check in found if check.required)


def conclusion(found: Sequence[Check]) -> str:
    """Return one line: what can be done here, and who writes ("Ready for CPU; no GPU; offline writer.")."""
    ok = {check.check: check.ok for check in found}
    cuda = ok.get("gpu", False) and ok.get("nvcc", False)
    missing = [check.check for check in found if check.required and not check.ok]
    ready_for = f"Not ready: {', '.join(missing)}" if missing else f"Ready for CPU{' and CUDA' if cuda else ''}"
    gpu = "" if cuda else "; a GPU, but no nvcc" if ok.get("gpu") else "; no GPU"
    models = [check for check in found if check.check == "llm" and check.ok]
    writer = "; ".join(check.detail for check in models) if models else "offline writer"
    return f"{ready_for}{gpu}; {writer}."


def python() -> Check:
    shown = ".".join(map(str, sys.version_info[:3]))
    return Check(
        "python",
        sys.version_info >= (3, 11),
        shown,
        "" if sys.version_info >= (3, 11) else "Install Python 3.11 or newer.",
        required=True,
    )


def packages() -> Iterator[Check]:
    """Check what is installed; versions are read without importing anything."""
    for name, required in (
        ("torch", True),
        ("apache-tvm-ffi", True),
        ("duckdb", True),
        ("chromadb", True),
        ("litellm", False),
        ("streamlit", False),
    ):
        try:
            yield Check(name, True, version(name), required=required)
        except PackageNotFoundError:
            yield Check(name, False, "not installed", f"Run `pip install {name}`.", required)


def tools() -> Toolchain:
    try:
        return toolchain()
    except OSError as error:
        raise MachineError(f"The compiler {error.filename} cannot be run: correct CXX, or unset it.") from error


def compiler() -> Check:
    try:
        found = tools()
    except MachineError as error:
        return Check("c++", False, "none found", str(error), required=True)
    return Check("c++", True, f"{found.cxx}: {found.version.split(' / ')[0]}", required=True)


def ninja() -> Check:
    beside = Path(sys.executable).parent / "ninja"
    found = str(beside) if beside.is_file() else shutil.which("ninja")
    return Check("ninja", found is not None, found or "none found", "" if found else "Run `pip install ninja`.", True)


def builds(check: str, source: str, backend: Backend, what: str, *, required: bool) -> Check:
    """Build a small kernel, without the cache."""
    try:
        with tempfile.TemporaryDirectory(prefix="rag-kernels-doctor-") as cache:
            [built] = build([(source, backend)], tools=tools(), cache=Path(cache))
            tvm_ffi_root()
    except MachineError as error:
        return Check(check, False, f"{what} does not build", str(error), required)
    if isinstance(built, Built):
        return Check(check, True, f"{what} builds in {built.seconds:.2f} s", required=required)
    return Check(check, False, f"{what} does not build: {built.reason}", "Install g++ with OpenMP (libgomp).", required)


def nvcc() -> Check:
    try:
        found = tools().nvcc
    except MachineError:
        found = None
    if found is None:
        return Check("nvcc", False, "none found", "For CUDA kernels install the CUDA toolkit; the CPU needs none.")
    return builds("nvcc", CUDA_KERNEL, "cuda", f"CUDA with {found}", required=False)


def gpu() -> Check:
    """Check for a GPU whose driver gives memory away by a descriptor, as the judge's processes share it."""
    name = gpu_name()
    if not name:
        return Check(
            "gpu",
            False,
            "nvidia-smi lists none",
            "CUDA kernels can be compiled here, but not verified; use --device cpu.",
        )
    try:
        with Workers() as started:
            started.call("rag_kernels.eval.children.gpu.shared_memory:shared", 1, deadline_s=60)
    except (WorkerFailed, RuntimeError) as error:
        return Check(
            "gpu",
            False,
            f"{name}; {error}",
            "See that `python -c 'import torch; torch.zeros(1).cuda()'` works, or update NVIDIA's driver.",
        )
    return Check("gpu", True, f"{name}; its memory can be shared")


def workers() -> Check:
    """Start one of the judge's child processes: it must import torch, and answer."""
    try:
        with Workers() as started:
            found = started.call("importlib.metadata:version", "torch", deadline_s=60)
    except (WorkerFailed, RuntimeError) as error:
        return Check("workers", False, str(error), "See that `python -c 'import torch'` works; reinstall torch.", True)
    return Check("workers", True, f"a child with torch {found} answers; {threads()} CPU threads", required=True)


def sandbox() -> Check:
    """Check which layers hold for every candidate; see the docstring of `eval.process.warm_parent`."""
    found = layers()
    detail = ", ".join(found)
    if any(name.startswith("bwrap") for name in found):
        return Check("sandbox", True, detail)
    step = "Install bubblewrap (Debian and Ubuntu: `apt-get install bubblewrap`)."
    if shutil.which("bwrap"):
        step = "bubblewrap cannot start here: allow user namespaces, or judge in a virtual machine of its own."
    return Check("sandbox", False, f"{detail}; no bubblewrap", step)


def embedder(options: Options) -> Check:
    try:
        loaded = load_embedder(options.embedder)
        loaded.embed(["softmax"])
    except EmbedderError as error:
        return Check("embedder", False, options.embedder, str(error), True)
    return Check("embedder", True, f"{loaded.name}, {loaded.dim} dimensions", required=True)


def archive(options: Options) -> Check:
    """Open the archive, count what it holds, and write to its folder."""
    try:
        opened = open_archive(options.archive or None)
        stats = opened.stats()
        if isinstance(opened, FileArchive):
            opened.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=opened.root) as file:
                file.write(b"rag-kernels")
    except ArchiveError as error:
        return Check("archive", False, options.archive, str(error), True)
    except OSError as error:
        step = "Choose a folder that you may write to with --archive or RAG_KERNELS_ARCHIVE."
        return Check("archive", False, f"{error.strerror}: {error.filename}", step, True)
    held = f"{stats['kernels']} kernels, {stats['confirmed']} confirmed"
    return Check("archive", True, f"{opened}: {held}", required=True)


def disk() -> Check:
    place = default_cache()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    detail = f"{free / 1e9:.1f} GB free at {place}"
    step = "" if free > NEEDED_DISK_BYTES else "Free some space, or set RAG_KERNELS_CACHE to another disk."
    return Check("disk", not step, detail, step)


def llm(options: Options, *, probe: bool) -> Iterator[Check]:
    """Check that models are named and have a key; with `probe` each is asked for one word."""
    if not options.models:
        step = "Give --model NAME or set RAG_KERNELS_MODEL; without one the offline writer works."
        yield Check("llm", False, "no model is configured", step)
    for model in options.models:
        yield asked(model, options) if probe else configured(model, options)


def configured(model: str, options: Options) -> Check:
    if model.startswith(PROGRAM_PREFIX):
        words = shlex.split(model.removeprefix(PROGRAM_PREFIX))
        found = bool(words) and shutil.which(words[0]) is not None
        return Check("llm", found, model, "" if found else f"There is no program {' '.join(words[:1])!r} on the PATH.")
    missing = load_litellm().validate_environment(model)["missing_keys"]
    if missing and not options.api_base:
        return Check("llm", False, f"{model} has no key", f"Set {' and '.join(missing)}, then try --probe.")
    return Check("llm", True, f"{model} is configured (not called; --probe does)")


def asked(model: str, options: Options) -> Check:
    client = LLM(lambda call: None, api_base=options.api_base or None, retries=0)
    question = [{"role": "user", "content": "Answer with the one word: ready"}]
    try:
        reply = client.complete(model, question, run_id="doctor", purpose="probe", timeout_s=60)
    except WriterError as error:
        return Check("llm", False, model, str(error))
    return Check("llm", True, f"{model} answered in {reply.seconds:.1f} s")
