"""Draw a table whose ids, problems and runs are links, with headings that sort, and boxes to tick for comparing.

Comes in: a table (pandas) and its columns. Goes out: a Streamlit component, `web/table.js`. Knows nothing of queries.
Streamlit's own tables are pictures: no link in them opens in another tab by the browser's own means, and no key moves
from row to row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

WEB = Path(__file__).with_name("web")
Kind = Literal["text", "number", "id", "check", "when"]


@dataclass(frozen=True, slots=True)
class Column:
    """Describe a column. `link` is an address with `{names}` of values; an `extra` column is hidden until chosen."""

    label: str
    kind: Kind = "text"
    help: str = ""
    digits: int = 0
    before: str = ""
    unit: str = ""
    link: str = ""
    wide: bool = False
    extra: bool = False
    bound: bool = False  # a value is a lower bound where its row says so


@dataclass(frozen=True, slots=True)
class Order:
    """Hold what a list is sorted by: a column, and in which direction."""

    column: str
    descending: bool

    @property
    def text(self) -> str:
        return f"-{self.column}" if self.descending else self.column


def asked_order(columns: Mapping[str, Column], default: Order) -> Order:
    """Return the order that the URL asks for by `?sort=ms` or `?sort=-speedup`."""
    text = st.query_params.get("sort", "")
    name = text.removeprefix("-")
    return Order(name, text.startswith("-")) if name in columns else default


def draw(
    table: pd.DataFrame,
    columns: Mapping[str, Column],
    *,
    key: str,
    name: str,
    open_at: str = "",
    tick: Literal["", "kernel", "run"] = "",
    order: Order | None = None,
) -> None:
    """Draw a table. `name` is its kind: tables of one kind share the choice of columns. `open_at` is the address that
    a click on a row opens. With `order` the headings sort the whole list, of which this is a page; without it they sort
    what is shown.
    """
    shown = [_shown(place, column, order) for place, column in columns.items()]
    kept = [c for c in dict.fromkeys([*columns, "id", "problem_id", "run_id", "at_least", "number"]) if c in table]
    rows = [
        {place: _value(value) for place, value in zip(kept, row, strict=True)}
        for row in table[kept].itertuples(index=False, name=None)
    ]
    data = {"name": name, "columns": shown, "rows": rows, "open": open_at, "tick": tick}
    _component()(key=key, data=data)


def _component() -> Any:
    return st.components.v2.component(
        "rag_kernels_table",
        js=(WEB / "table.js").read_text(),
        css=(WEB / "table.css").read_text(),
        isolate_styles=False,
    )


def _shown(place: str, column: Column, order: Order | None) -> dict[str, object]:
    told: dict[str, object] = {"key": place} | {f: getattr(column, f) for f in Column.__dataclass_fields__}
    if order is None:
        return told
    here = order.column == place
    next_one = Order(place, not order.descending if here else column.kind in ("number", "when"))
    query = {**st.query_params.to_dict(), "sort": next_one.text}
    query.pop("page", None)
    sorted_as = ("descending" if order.descending else "ascending") if here else ""
    return {**told, "sort": f"?{urlencode(query)}", "sorted": sorted_as}


def _value(value: Any) -> object:
    """Return a value as JSON has it; what is missing is null."""
    if value is None or value is pd.NaT or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, pd.Timestamp):
        return value.strftime("%Y-%m-%d %H:%M")
    return value.item() if hasattr(value, "item") else value


def only(columns: Mapping[str, Column], names: Sequence[str]) -> dict[str, Column]:
    """Return some of the columns, in their own order."""
    return {name: column for name, column in columns.items() if name in names}
