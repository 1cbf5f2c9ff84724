"""A list of kernels as CSV, for spreadsheets and scripts.

Comes in: a table as `app.snapshot` lists it. Goes out: text, a line for each kernel. A text that a spreadsheet would
take for a formula is quoted.
"""

from __future__ import annotations

import csv
import io
from typing import Any

import pandas as pd

COLUMNS = (
    "id problem problem_id speedup speedup_eager speedup_compile at_least ms eager_ms compile_ms floor_percent trust "
    "retracted stale unranked label labels family backend tier dtype device writer model idea created_at"
).split()


def kernels_csv(table: pd.DataFrame) -> str:
    """Return the whole table as CSV with a heading."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    names = [name for name in COLUMNS if name in table.columns]
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in table[names].itertuples(index=False, name=None))
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None or value is pd.NaT or value != value:
        return ""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+@-") else value
