"""By what a library could find out where it runs: what it takes from others, and a few instructions."""

from pathlib import Path

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.trial.surroundings import looks_around, takes_static_room

CALLS = """
#include "rag_kernel.h"
INCLUDES
void run(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] + float(ASKED);
}
RK_EXPORT(forward, run)
"""
ASKS = {  # what is told of each
    ("getpid()", "unistd.h"): "getpid",
    ("time(nullptr)", "ctime"): "time",
    ("std::chrono::steady_clock::now().time_since_epoch().count()", "chrono"): "_ZNSt6chrono3_V212steady_clock3nowEv",
    ("__rdtsc()", "x86intrin.h"): "the instruction rdtsc",
    ("omp_get_wtime()", "omp.h"): "omp_get_wtime",
}
BYTES = "0x48, 0xb8, 0x0f, 0x31, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90"
ELSEWHERE = '__attribute__((section(".more,\\"ax\\",@progbits#"), used))'
ROOM = 'static thread_local float kept[9] __attribute__((tls_model("initial-exec")));'
HIDDEN = {
    f'asm("jmp 1f + 2\\n1: .byte {BYTES}");': "a jump into an instruction",
    'asm("jmp 1f\\nnop\\n1: nop");': "",
    f"{ELSEWHERE} static const unsigned char code[] = {{{BYTES}}};": "data among its instructions",
    f"static const unsigned char code[] = {{{BYTES}}};": "",
    "volatile int id = static_cast<const int*>(__builtin_thread_pointer())[180];": "what its thread has",
    "static thread_local float kept[9]; volatile float* room = kept; room[out.numel() % 9] = 1;": "",
    f"{ROOM} volatile float* room = kept; room[out.numel() % 9] = 1;": "",
}
COMPUTES = (
    ("std::tgamma(x.data[i]) + std::fma(x.data[i], 2.f, 1.f)", "cmath"),
    ("lgammaf_r(x.data[i], std::vector<int>(1).data())", "cmath"),
    ("std::vector<float>(8, x.data[i]).at(i)", "vector"),
    ("std::async([] { return 1; }).get()", "future"),
    ("std::abs(std::complex<float>(x.data[i]) / std::complex<float>(2, 1))", "complex"),
    ("(std::cerr << omp_get_max_threads(), std::stoi(std::to_string(i)))", "iostream"),
)


def source(asked: str, header: str) -> str:
    heads = "\n".join(f"#include <{name}>" for name in (header, "algorithm", "string", "omp.h", "vector"))
    return CALLS.replace("INCLUDES", heads).replace("ASKED", asked)


def test_what_asks_for_its_surroundings_is_named_and_what_computes_is_not(tmp_path: Path) -> None:
    texts = [source(*asked) for asked in (*ASKS, *COMPUTES)]
    built = build([(text, "cpu") for text in texts], tools=toolchain(), cache=tmp_path)
    libraries = [one.library for one in built if isinstance(one, Built)]
    told = [looks_around(path, text, on_gpu=False) for path, text in zip(libraries, texts, strict=True)]
    assert told == [*ASKS.values(), *[""] * len(COMPUTES)]


def test_code_that_assembly_does_not_show_is_seen(tmp_path: Path) -> None:
    texts = [source("x.data[i]", "cmath").replace("  for (", f"  {text}\n  for (", 1) for text in HIDDEN]
    built = build([(text, "cpu") for text in texts], tools=toolchain(), cache=tmp_path)
    libraries = [one.library for one in built if isinstance(one, Built)]
    told = [looks_around(path, text, on_gpu=False) for path, text in zip(libraries, texts, strict=True)]
    assert told == [*HIDDEN.values()]
    assert [takes_static_room(path) for path in libraries] == [ROOM in text for text in HIDDEN]
