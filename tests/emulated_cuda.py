"""Generated CUDA run without a GPU: C++ over `cuda_emulation.h`, loaded as the judge loads a kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import tvm_ffi
from support import generated_kernels as numbers

from rag_kernels.eval.build.compile import made_once, toolchain
from rag_kernels.offline.cuda.texts.attention import INSTRUCTIONS

TESTS = numbers.ROOT / "tests"
RAG_KERNEL = numbers.ROOT / "eval" / "include" / "rag_kernel.h"
ONCE = [TESTS / "cuda_emulation.cpp", TESTS / "hopper_emulation.cpp"]  # compiled for all kernels, and well
HEADERS = [TESTS / "cuda_emulation.h", RAG_KERNEL, TESTS / "hopper_emulation.h", TESTS / "float8_emulation.h"]
# What the standard headers leave to be instantiated is so again in each build, which takes as long as a third of it: of
# <cmath> the special functions, and what <atomic> waits with in C++20. No text has either.
UNUSED = "-D_GLIBCXX_BITS_SPECFUN_H -D_GLIBCXX_ATOMIC_WAIT_H"
FLAGS = (
    f"-O0 -fno-strict-aliasing -fPIC -std=c++20 -pthread {UNUSED} -I{numbers.ROOT}/eval/include -I{numbers.FFI}/include"
)

# Gold, where it is there, links in half the time.
LINKED = f"-L{numbers.FFI}/lib -ltvm_ffi {'-fuse-ld=gold' if shutil.which('ld.gold') else ''}".split()


def launched(found: re.Match[str]) -> str:
    """A launch as a call, with the kernel of which dynamic shared memory is asked."""
    kernel, grid, block, shared, given = found.groups()
    asked = "nullptr" if shared == "0" else f"(const void*){kernel}"
    return f"emulate({asked}, dim3({grid}), dim3({block}), {shared}, [&] {{ {kernel}({given}); }});"


def build_emulated(source: str, folder: Path) -> Any:
    """CUDA as C++ with the emulation in place of the runtime: a launch becomes a call."""
    text, library = folder / "k.cpp", folder / "k.so"
    source = source.replace(INSTRUCTIONS, "")
    source = source.replace('asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));', "y = std::exp2(x);")
    source = source.replace('asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + x));', "y = std::log2(1.0f + x);")
    root = 'asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));'
    source = source.replace(root, "y = std::nextafter(1.0f / std::sqrt(t), 0.0f);")
    launch = r"(\w+(?:<\d+>)?)<<<(.*?), (\w+|dim3\(.*?\)), (\w+), stream>>>\((.*?)\);"
    source = re.sub(r"#include <cuda_(runtime|bf16|fp16|fp8)\.h>", "", source)
    source = source.replace("extern __shared__ float shared[];", "auto& shared = shared_of[resident_block()];")
    source = re.sub(launch, launched, source)
    held = "static __align__(16) float4 held_of[16][1 << 14]; auto& held = held_of[resident_block()];"
    source = source.replace("extern __shared__ float4 held[];", held)
    shared = r"__shared__ (?:__align__\(\d+\) )?(\w+) (\w+)((?:\[[^\]]*\])*);"
    source = re.sub(shared, r"static \1 \2_of[16]\3; auto& \2 = \2_of[resident_block()];", source)
    product = r"asm\(\"mma\.sync\.aligned\.m16n8k\d+\.row\.col\.f32\.(\w+)\..*?\);"
    text.write_text(re.sub(product, r"emulate_multiply_\1(sums, a, b);", source, flags=re.DOTALL))
    common = "".join(f'#include "{header}"\n' for header in HEADERS)
    common += "using __nv_bfloat16 = rk::bf16;\nusing __half = rk::f16;\n"
    texts = [header.read_text() for header in HEADERS]
    made = made_once("emulated.h", common, "emulated.h.gch", f"{FLAGS} -x c++-header", toolchain(), folder, *texts)
    once = f"{FLAGS.replace('-O0', '-O2')} -I{TESTS} -c"
    parts = [made_once(of.name, of.read_text(), "part.o", once, toolchain(), folder, *texts) / "part.o" for of in ONCE]
    command = ["g++", *FLAGS.split(), "-include", f"{made}/emulated.h", "-shared", f"{text}", *map(str, parts)]
    done = subprocess.run([*command, "-o", str(library), *LINKED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tvm_ffi.load_module(str(library))
