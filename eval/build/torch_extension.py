"""torch's loader of C++ and CUDA extensions in half its time, for the candidate worker.

What it builds spends its time on parsing `torch/extension.h`. A lighter header of this name is found first (CPATH
comes before torch's own folders); what does not build with it is built again with torch's.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from rag_kernels.eval.places import LIGHT_HEADERS

LIGHT = "_run_ninja_build_light"
ONE = threading.Lock()  # a module may build several in threads, and the environment is the process's


def lighten() -> None:
    """Make extensions light from now on, in this process.

    It is done around ninja, so it works wherever a candidate builds from.
    """
    from torch.utils import cpp_extension

    ninja = cpp_extension._run_ninja_build
    if ninja.__name__ == LIGHT:
        return

    def build(*asked: Any, **named: Any) -> None:
        with ONE:
            before = os.environ.get("CPATH")
            os.environ["CPATH"] = f"{LIGHT_HEADERS}:{before}" if before else str(LIGHT_HEADERS)
            try:
                return ninja(*asked, **named)
            except RuntimeError:  # which says too little of why
                pass
            finally:
                del os.environ["CPATH"]
                if before is not None:
                    os.environ["CPATH"] = before
            return ninja(*asked, **named)

    build.__name__ = LIGHT
    cpp_extension._run_ninja_build = build
