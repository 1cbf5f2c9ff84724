"""A kernel as C++ or CUDA text that torch's own loader of extensions builds, with nothing of tvm-ffi or of ours.

Comes in: a candidate. Goes out: the kernel with its header, and the binding that makes a Python module of it. Where
GPU MODE's letters are forbidden, launches go to the default queue, and a source that manages queues itself is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rag_kernels.eval import places
from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.eval.build.headers import CONTRACT, headers_of
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Candidate

HERE = Path(__file__).parent
LETTERS = "stream"
INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*\n', re.MULTILINE)
CURRENT = """\
static int64_t asked(const char* function, int device) {
  PyObject* torch = PyImport_ImportModule("torch._C");
  PyObject* found = torch ? PyObject_CallMethod(torch, function, "i", device) : nullptr;
  Py_XDECREF(torch);
  return number(found);
}
// The queue on which torch works on a device, which is the one in use while this lives.
struct Where {
  int before = -1;
  void* queue = nullptr;
  explicit Where(int device) {
    if (device < 0) return;
    before = int(asked("_cuda_exchangeDevice", device));
    if (!PyErr_Occurred()) queue = reinterpret_cast<void*>(asked("_cuda_getCurrentRawStream", device));
  }
  ~Where() {
    if (before < 0) return;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    asked("_cuda_exchangeDevice", before);
    PyErr_Restore(kind, value, trace);
  }
};
"""
QUEUE = """\
// The default queue, in place of a pointer to it.
struct Queue { Queue(void* = nullptr) {} template <class T> operator T*() const { return nullptr; } };
"""
SHARED = {  # parts of the judge's header, by where they begin and what follows them
    "CHECKS_AND_HALVES": ("struct Error {", "template <class T> struct DType;"),
    "LAUNCH": ("#define RK_LAUNCH(KERNEL", "#elif defined(RK_SPLIT)"),
}
OWN = "-fvisibility=hidden"  # what it keeps in variables is its own, also where another kernel has some of the name
CPU_FLAGS = ("-O3", "-std=c++17", "-march=native", "-fopenmp", OWN, "-fno-math-errno", "-fno-trapping-math")
# torch.utils.cpp_extension takes conversions and operators of sixteen-bit types away, which the judge's compiler has.
OF_HALVES = ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
CUDA_FLAGS = ("-O3", "-std=c++17", *(f"-U__CUDA_NO_{name}__" for name in OF_HALVES))
VALUE = r"(?:[^,;()<>]|<[^<>]*>|\((?:[^()]|\([^()]*\))*\))*"
SET = rf"\w+\.stream\s*=\s*{VALUE}"
OWN_NAMES = re.compile(r'(?<![<"])\b(?!cuda|cu[A-Z])(\w*)stream(\w*)\b(?!["])')  # no name of CUDA's, no file's
TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def kernel_text(candidate: Candidate, *, default_queue: bool = False) -> str:
    """Return the kernel as one text with the headers that it includes."""
    source = kernels_text(candidate.source) if candidate.tier == "composed" else candidate.source
    text = f"{_value()}\n{_contract()}\n{with_headers(source)}"
    text = text.replace("#pragma once\n", "")
    return on_default_queue(text) if default_queue else text


def binding_text(
    names: Sequence[str], constants: Sequence[bool | int | float] = (), inputs: int = 0, *, default_queue: bool = False
) -> str:
    """Return the Python module of these functions; `constants` are put after the first `inputs` arguments."""
    text = (HERE / "binding.cpp").read_text()
    found = {
        "CURRENT": "" if default_queue else CURRENT,
        "WHERE": "" if default_queue else "const Where where(device);",
        "QUEUE": "nullptr" if default_queue else "where.queue",
        "CONSTANTS": "\n  ".join(_insert(value, inputs + i) for i, value in enumerate(constants)),
        "FUNCTIONS": "\n".join(_function(name, py=f"python_{name}") for name in names),
        "METHODS": "".join(f'{{"{name}", python_{name}, METH_VARARGS, nullptr}}, ' for name in names),
    }
    for name, value in found.items():
        text = text.replace(f"@{name}@", value)
    return f"{_value()}\n{text}"


def exported(candidate: Candidate) -> list[str]:
    """Return the names of a candidate's exported functions."""
    source = kernels_text(candidate.source) if candidate.tier == "composed" else candidate.source
    return list(dict.fromkeys(re.findall(r"^[^\n/]*\bRK_EXPORT\(\s*(\w+)\s*,", source, re.MULTILINE)))


def with_headers(source: str) -> str:
    """Return a source with our headers where it includes them, each once; the contract's stands before it."""
    found, given = headers_of(source), {CONTRACT}

    def text(line: re.Match[str]) -> str:
        name = line[1]
        if name not in found:
            return line[0]
        if name in given:
            return ""
        given.add(name)
        return INCLUDED.sub(text, found[name])

    return INCLUDED.sub(text, source)


def on_default_queue(text: str) -> str:
    """Return C++ without the letters that GPU MODE refuses; raises ProblemError where it must keep one."""
    text = TOKENS.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
    # a launch's configuration has the default queue unless another one is set
    for setting in (rf",\s*{SET}(?=\s*[,;])", rf"\b{SET}\s*,", rf"\b{SET}(?=;)"):  # in a list, first in one, alone
        text = re.sub(setting, "", text)
    text = text.replace("namespace rk {", f"namespace rk {{\n{QUEUE}", 1) if "struct Queue" not in text else text
    text = re.sub(r"\bcudaStream_t\b", "rk::Queue", text)
    text = OWN_NAMES.sub(r"\1queue\2", text)
    for number, line in enumerate(text.splitlines(), 1):
        if LETTERS in line.lower():
            raise ProblemError(
                f"GPU MODE takes no file with the letters '{LETTERS}', and line {number} of the kernel needs them: "
                f"{line.strip()[:80]}"
            )
    return text


def _contract() -> str:
    """Return the contract's header for values: what does not ask who calls is the judge's own text."""
    text, judges = (HERE / "rag_kernel.h").read_text(), (places.INCLUDE / "rag_kernel.h").read_text()
    for name, (begin, end) in SHARED.items():
        text = text.replace(f"@{name}@", judges[judges.index(begin) : judges.index(end)].rstrip())
    return text


def _value() -> str:
    return (HERE / "value.h").read_text()


def _insert(value: bool | int | float, place: int) -> str:
    kind, number = ("Real", repr(value)) if isinstance(value, float) else ("Integer", str(int(value)))
    number = {"inf": "HUGE_VAL", "-inf": "-HUGE_VAL", "nan": "NAN"}.get(number, number)
    fields = f"rk::Value::{kind}, int64_t({number if kind == 'Integer' else 0}), double({number})"
    return f"values.insert(values.begin() + {place}, rk::Value{{{fields}}});"


def _function(name: str, py: str) -> str:
    return (
        f'extern "C" const char* rk_{name}(const rk::Value*, int, void*);\n'
        f"static PyObject* {py}(PyObject*, PyObject* arguments) {{ return call(rk_{name}, arguments); }}"
    )
