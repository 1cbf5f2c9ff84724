"""By what a kernel could find out where it runs: functions that it takes from others, and instructions.

Comes in: a built library and its source. Goes out: a few names, or nothing. On a CPU it may take what computing needs:
mathematics, OpenMP and threads, memory and strings, the runtimes of C++ and of the contract. Whatever else it takes
tells it of its surroundings, of the time, or does what is not a kernel's to do. CUDA's own runtime takes much of that
too: there a list names what is looked for, and the source has to name it as well.
"""

from __future__ import annotations

import re
import subprocess
from functools import lru_cache
from pathlib import Path

from rag_kernels.eval.build.compile import OBJECT, taken_names
from rag_kernels.eval.traits.named_numbers import NamedNumbers, named_numbers

_MATHEMATICS = """
acosh? asinh? atan2? atanh cbrt ceil copysign cosh? erfc? exp exp2 exp10 expm1 fabs fdim floor fma fmax fmin fmod frexp
hypot ilogb ldexp lgamma lgamma[fl]?_r l?lrint lrint l?lround lround log log10 log1p log2 logb modf nan nearbyint
nextafter nexttoward pow remainder remquo rint round roundeven scalbl?n sincos sinh? sqrt tanh? tgamma trunc [jy][01n]
c(?:abs|acosh?|arg|asinh?|atanh?|cosh?|exp|imag|log|log10|pow|proj|real|sinh?|sqrt|tanh?)
"""  # each with f or l behind it
_C = r"""
fe(?:get|hold|set|update)env fe[gs]etround fe(?:clear|raise|test)except
mem(?:p?cpy|ccpy|move|set|r?chr|cmp|mem) str(?:n?len|n?cmp|n?cpy|n?cat|r?chr|str|nstr|n?dup|tok|tok_r|spn|cspn|pbrk)
strto(?:d|f|l|ul|ll|ull|ld) malloc calloc realloc free reallocarray posix_memalign aligned_alloc memalign valloc
qsort qsort_r bsearch l?l?abs l?l?div rand_r [ejn]rand48
v?f?s?n?printf v?snprintf v?sscanf puts putchar f?putc fputs fwrite fflush stderr stdout perror strerror
abort exit _exit usleep nanosleep sched_yield sem_\w+ call_once thrd_\w+ mtx_\w+ cnd_\w+ tss_\w+
pthread_(?!getattr|setattr|[gs]etaffinity|[gs]etname|getcpuclockid|kill|sigmask|atfork)\w+
"""
_RUNTIME = r"""
_ITM_\w+ __gmon_start__ __cxa_\w+ __g(?:xx|cc)_personality\w* _Unwind_\w+ __dso_handle __tls_get_addr _?setjmp longjmp
__stack_chk_fail __assert_fail __errno_location __libc_single_threaded __once_proxy _GLOBAL_OFFSET_TABLE_
__(?:mem|str|stp|v?f?s?n?printf|longjmp)\w*_chk __stack_chk_guard __aarch64_\w+ bcmp bzero stpcpy
__atomic_\w+ _ZTH\w+ __gnu_[fhd]2[fhd]_ieee
__cpu_\w+ __isoc\d+_(?:strto\w+|v?sscanf) TVMFFI\w+ GOMP_\w+ __kmpc_\w+ omp_(?!get_wti)\w+ Sleef_\w+
__(?:u?div|u?mod|mul|add|sub|neg|pow|float|fix|extend|trunc)\w*(?:[sdtxhb]f|[sdt]i|[sdtxh]c)\d?
__(?:popcount|clz|ctz|ffs|ash|lsh|u?cmp|eq|ne|[lg][te]|unord|parity|bswap)\w*(?:[sdtxhb]f|[sdt]i)\d?
_ZN?K?S[tosabid]\w* _Z[nd][wal]\w* _ZT[IVST](?:N?K?S|N10__cxxabiv1|P?K?[a-z])\w* _ZGV\w+ _ZGTt\w+
_ZN(?:10__cxxabiv1|9__gnu_cxx)\w*
"""  # at last the C++ library, operators new and delete, tables of types, and the vector mathematics of the C library
_COMPUTES = re.compile(
    "|".join([*(f"(?:__)?{n}[fl]?(?:_finite)?" for n in _MATHEMATICS.split()), *_C.split(), *_RUNTIME.split()])
)
_NOT_OF_CPP = re.compile(
    r"_ZN?K?St(?:3__1)?(?:1[34]basic_[io]?f(?:stream|ilebuf)|12__basic_file|10filesystem|6chrono|13random_device)"
)
# What is looked for on a GPU.
_AROUND = frozenset(
    "dlopen dlsym dlvsym dlmopen dl_iterate_phdr dladdr dladdr1 dlinfo _r_debug getenv secure_getenv environ __environ "
    "fopen fopen64 freopen open open64 openat openat64 __open_2 __open64_2 opendir readlink readlinkat popen getauxval "
    "syscall ptrace prctl personality mincore process_vm_readv sigaction signal getpid getppid gettid getuid geteuid "
    "getrlimit getrlimit64 prlimit getrusage sysinfo uname gethostname getcwd clock_gettime gettimeofday".split()
)
_SYSCALL = re.compile(r"\b(?:asm|__asm__|__asm)\b[^;]*\b(?:syscall|int\s*\$0x80|svc)\b", re.DOTALL)
_INSTRUCTION = re.compile(r"\t(rdtscp?|rdpmc|rdpid|rdpru|syscall|sysenter|int +\$0x80|svc|mrs\s+\w+, cnt\w+)\b")
# What a thread has in a block of its own, but for the guard of a stack: its number, where its stack ends.
_OF_ITS_THREAD = re.compile(r"%[fg]s:(?!0x28\b)")
_SECTION = re.compile(r"^Disassembly of section (\S+):$", re.MULTILINE)
_AT = re.compile(r"^ *([0-9a-f]+):\t(?:(?:bnd |notrack )*(?:j\w+|call|loop\w*) +([0-9a-f]+)\b)?", re.MULTILINE)
_OBJECT_IN = re.compile(r"^[0-9a-f]{8,} .{6}O (\S+)\s", re.MULTILINE)
_UNIQUE, _OF_CPP = re.compile(r"^\S+ u (\S+)$", re.MULTILINE), re.compile(r"_Z(?:GV)?Z?N?K?S")
_BUILT = re.compile(r"\b__(?:DATE|TIME|TIMESTAMP)__\b")
SHOWN = 5


def looks_around(library: Path, source: str, *, on_gpu: bool) -> str:
    """Return by which functions or instructions a library could find out where it runs, or "" where it could not."""
    names = taken_names(library)
    if on_gpu:
        found = [n for n in names if n in _AROUND and re.search(rf"\b{n}\b", source)]
    else:
        found = [n for n in names if not _COMPUTES.fullmatch(n) or _NOT_OF_CPP.match(n)]
        text = _instructions(library)
        found += [f"the instruction {name}" for name in sorted(set(_INSTRUCTION.findall(text)))]
        found += hidden(text)
        found += ["what its thread has"] * (reads_thread(text) and not takes_static_room(library))
    found += ["when it was built"] * bool(_BUILT.search(source))
    found += ["a system call of its own"] * bool(_SYSCALL.search(source))
    return ", ".join(sorted(found)[:SHOWN])


def numbers_it_names(library: Path | None, source: str, *, on_gpu: bool) -> NamedNumbers:
    """Return which numbers a candidate names: its text and, on a CPU, its code."""
    if library is None or on_gpu:
        return named_numbers(source)
    own = library.with_name(OBJECT)
    return named_numbers(source, _instructions(library), own.read_bytes() if own.is_file() else b"")


def hidden(text: str) -> list[str]:
    """Return, in words, how code is there that its assembly does not show: within instructions, or as data."""
    found, sections, within = _SECTION.split(text), set[str](), False
    for name, code in zip(found[1::2], found[2::2], strict=True):
        pairs = _AT.findall(code)
        starts, last = {at for at, _ in pairs}, int(pairs[-1][0], 16) if pairs else 0
        within |= any(to not in starts and int(to, 16) <= last for _, to in pairs if to)  # a linker's are beyond
        sections.add(name)
    as_data = any(name in sections for name in _OBJECT_IN.findall(text))
    return ["a jump into an instruction"] * within + ["data among its instructions"] * as_data


def reads_thread(text: str) -> bool:
    """Return whether code reads its thread's own block, as variables of threads that have their place there do."""
    return _OF_ITS_THREAD.search(text) is not None


def takes_static_room(library: Path) -> bool:
    """Return whether variables of threads lie in a block that a process has little of, and not where a library that is
    loaded later has them (`-ftls-model=initial-exec`): a few such libraries cannot be loaded together.
    """
    if not reads_thread(_instructions(library)):
        return False
    told = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=False).stdout
    return "STATIC_TLS" in told


def process_wide(library: Path) -> list[str]:
    """Return variables of which a process has one for all libraries that have one of that name, as exported `inline`
    ones are, but for those of the C++ library.
    """
    told = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=False)
    return [name for name in _UNIQUE.findall(told.stdout) if not _OF_CPP.match(name)]


@lru_cache(maxsize=2)
def _instructions(library: Path) -> str:
    """Return its own code in assembly and its symbols, without what a compiler's runtime adds."""
    own = library.with_name(OBJECT)
    command = ["objdump", "-d", "-t", "--no-show-raw-insn", str(own if own.is_file() else library)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
