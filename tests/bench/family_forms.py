"""Problems of our own by operator family, each in several dtypes: what the starter archive's CUDA kernels are for.

    python tests/bench/family_forms.py build/families --dtypes float32 bfloat16 float16
    python tests/bench/many_kernels.py plan jobs.jsonl build/families --confirm --in-order

Comes in: `family_forms.txt`, a paragraph a form: its family, its name and what it computes; its inputs; what it holds
as parameters; the statements of its forward, of which the last one is what it returns. In these texts T(...) is a
normal tensor of the dtype and U(...) one of numbers between 0 and 1, DTYPE the dtype, and R, B and other capitals are
sizes: tensors take about as many bytes in every dtype (32 MiB), far beyond what a launch costs. Goes out: a file for
each form and dtype, and `order.txt`, in which every family comes once before any comes again, so that a cut leaves all.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_suffix(".txt")
SHORT = {"float32": "", "bfloat16": "_bf16", "float16": "_fp16"}
SIZES = {"RR": 1 << 18, "RQ": 8192, "R": 2048, "Q": 1024, "H": 1024, "B": 16, "V": 256}  # in fp32; in 16 bits twice
MAKERS = {"T": "randn", "U": "rand"}
ONLY = re.compile(r" \((\w+) alone\)$")
FILE = '''"""{family}: {says}."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
{init}    def forward(self, {arguments}):
{body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
'''


@dataclass(frozen=True, slots=True)
class Form:
    """A problem without its dtype. `inputs` and `held` (parameters): names with what makes their values."""

    family: str
    name: str
    says: str
    inputs: str
    held: str
    body: Sequence[str]
    dtypes: Sequence[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=[*SHORT], choices=SHORT)
    parser.add_argument("--table", type=Path, default=TABLE, help="of forms; technique_forms.txt has others")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    forms = [form_of(paragraph) for paragraph in asked.table.read_text().strip().split("\n\n")]
    queued = {f"{form.name}{SHORT[dtype]}.py": text_of(form, dtype) for form, dtype in in_turn(forms, asked.dtypes)}
    for name, text in queued.items():
        (asked.out / name).write_text(text)
    (asked.out / "order.txt").write_text("\n".join(queued) + "\n")
    print(f"{len(queued)} problems of {len({form.family for form in forms})} families")


def form_of(paragraph: str) -> Form:
    """Read one paragraph of the table."""
    head, inputs, *rest = (line.strip() for line in paragraph.splitlines())
    family, name, says = head.split(": ", 2)
    only = ONLY.search(says)
    held = rest.pop(0).removeprefix("with ") if rest[0].startswith("with ") else ""
    dtypes = (only[1],) if only else tuple(SHORT)
    return Form(family, name, ONLY.sub("", says), inputs.removeprefix("of "), held, rest, dtypes)


def in_turn(forms: Sequence[Form], dtypes: Sequence[str]) -> list[tuple[Form, str]]:
    """Return each form in each of its dtypes: every family once, then each again in another dtype or form."""
    by_family: dict[str, list[Form]] = defaultdict(list)
    for form in forms:
        by_family[form.family].append(form)
    rounds: dict[int, list[tuple[Form, str]]] = defaultdict(list)
    for number, some in enumerate(by_family.values()):
        for i in range(len(some) * len(dtypes)):
            turn, place = divmod(i, len(some))  # all its forms in one dtype each, then in the next
            dtype = dtypes[(number + turn + place) % len(dtypes)]
            rounds[i] += [(some[place], dtype)] if dtype in some[place].dtypes else []
    return [one for i in sorted(rounds) for one in rounds[i]]


def text_of(form: Form, dtype: str) -> str:
    """Return the problem's file."""
    given, held = named(form.inputs, dtype), named(form.held, dtype)
    *statements, result = (filled(line, dtype) for line in form.body)
    made = [f"        self.{name} = nn.Parameter({value})\n" for name, value in held]
    init = ["    def __init__(self):\n        super().__init__()\n", *made, "\n"] if held else []
    return FILE.format(
        family=form.family,
        says=form.says,
        init="".join(init),
        arguments=", ".join(name for name, _ in given),
        body="\n".join(f"        {line}" for line in [*statements, f"return {result}"]),
        inputs=", ".join(value for _, value in given),
    )


def named(text: str, dtype: str) -> list[tuple[str, str]]:
    """Return the names and values of `x=T(R, 4096); y=...`."""
    parts = [part.partition("=") for part in filled(text, dtype).split("; ")] if text else []
    return [(name, value) for name, _, value in parts]


def filled(text: str, dtype: str) -> str:
    """Return a line of the table as Python: tensors, sizes and the dtype in the place of their names."""
    for name, maker in MAKERS.items():
        text = re.sub(rf"\b{name}\(([^()]*)\)", rf"torch.{maker}(\1, dtype=DTYPE)", text)
    times = 1 if dtype == "float32" else 2
    text = re.sub(rf"\b({'|'.join(SIZES)})\b", lambda found: str(times * SIZES[found[1]]), text)
    return text.replace("DTYPE", f"torch.{dtype}")


if __name__ == "__main__":
    main()
