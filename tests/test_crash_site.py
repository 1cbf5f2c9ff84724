"""A crash is told by the file, the line and the function of who wrote the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_home import RELU, RIGHT, inside

from rag_kernels.eval.instruments.sanitizers import as_site, said_first

BEYOND = RIGHT.replace(
    "void scaled",
    "static float reach(const float* p, int64_t i) {\n  return p[i + (int64_t(1) << 33)];\n}\nvoid scaled",
    1,
)
ASAN = """\
==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602 at pc 0x55
READ of size 4 at 0x602 thread T0
    #0 0x55d in reach(float const*, long) /tmp/build/kernel0.cpp:12
    #1 0x55e in scaled /tmp/build/kernel0.cpp:15
"""


OTHER_THREAD = """\
==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x602 at pc 0x55
WRITE of size 4 at 0x602 thread T0
!!!!!!! Segfault encountered !!!!!!!
  File "/tmp/b/kernel0.cpp", line 11, in forward(rk::Tensor<float const>, long) [clone ._omp_fn.0]
"""


@pytest.mark.parametrize(
    ("log", "site"),
    [
        (OTHER_THREAD, "kernel.cpp:11: heap-use-after-free in forward()"),
        (ASAN, "kernel.cpp:12: heap-buffer-overflow in reach()"),
        ('  File "/tmp/b/kernel0.cpp", line 3, in reach\n', "kernel.cpp:3: a segmentation fault in reach()"),
        ("nothing that is known", "kernel.cpp: it ended in a crash"),
    ],
)
def test_the_first_frame_of_the_source_is_the_site(log: str, site: str) -> None:
    assert as_site(said_first(log)) == site


def test_eval_names_the_line_of_the_users_file(tmp_path: Path) -> None:
    (tmp_path / "relu.py").write_text(RELU.problem.source)
    source = BEYOND.replace("= x.data[i]", "= reach(x.data, i)")
    (tmp_path / "beyond.cpp").write_text(source)
    done = inside(tmp_path, "eval", "relu.py", "beyond.cpp", "--archive", ":memory:", quick=True)
    line = next(
        n for n, text in enumerate((tmp_path / "beyond.cpp").read_text().splitlines(), 1) if "return p[" in text
    )
    assert done.code == 1 and f"beyond.cpp:{line}: " in done.out and "in reach()" in done.out, done.out + done.err
    assert done.out.count("CRASHED") == 1 and "candidate_code.py" not in done.out
