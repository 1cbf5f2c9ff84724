"""The frame of a page without scripts: head, links, tables, code, and a bound on its size.

Comes in: titles, rows, texts. Goes out: HTML in which every value is escaped. Knows nothing of archives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

WEB = Path(__file__).parents[1] / "web"
STYLE = (Path(__file__).with_name("site.css")).read_text() + (WEB / "picture.css").read_text()
MOST_BYTES = 100_000  # of a page
CODE_CHARS = 40_000  # of one block of code at first; less where a page has many

# A page may run nothing and ask nobody: archived text may come from a model or from a stranger.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"


def page(title: str, body: str, *, up: str, trail: Sequence[tuple[str, str]] = (), about: str = "") -> str:
    """Return a whole page. `up` leads to the site's root; `trail` are labels and addresses of the pages above."""
    steps = [("Archive", f"{up}index.html"), *trail]
    crumbs = " › ".join(f'<a href="{escape(address)}">{escape(label)}</a>' for label, address in steps)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="generator" content="rag-kernels"><title>{escape(title)} · rag-kernels</title>
<style>{STYLE}</style></head>
<body><a class="skip" href="#main">Skip to the content</a>
<header><nav aria-label="Breadcrumbs">{crumbs}</nav>
<nav aria-label="Lists"><a href="{up}kernels-1.html">Kernels</a> <a href="{up}problems-1.html">Problems</a>
<a href="{up}kernels.csv" download>CSV</a></nav></header>
<main id="main"><h1>{escape(title)}</h1>
{body}
</main><footer>{escape(about)}</footer></body></html>
"""


def bounded(make: Callable[[int], str]) -> str:
    """Return a page that is small enough: `make` is told how many characters of each block of code to show."""
    chars = CODE_CHARS
    while len((text := make(chars)).encode()) >= MOST_BYTES and chars > 500:
        chars //= 2
    return text


def link(address: str, text: str) -> str:
    return f'<a href="{escape(address)}">{escape(text)}</a>'


def table(heads: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Return a table; `heads` are names and whether a column is of numbers; cells are HTML already."""
    kinds = ["n" if number else "" for _, number in heads]
    marked = [f' class="{kind}"' if kind else "" for kind in kinds]
    top = "".join(f'<th scope="col"{m}>{escape(name)}</th>' for (name, _), m in zip(heads, marked, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{m}>{cell}</td>" for cell, m in zip(row, marked, strict=True)) + "</tr>" for row in rows
    )
    told = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{told}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def code(text: str, chars: int, whole: str = "") -> str:
    """Return a block of code, cut at a line where it is longer; `whole` is the address of the whole of it."""
    if len(text) <= chars:
        return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'
    kept = text[:chars].rpartition("\n")[0] or text[:chars]
    rest = text[len(kept) :].count("\n")
    more = link(whole, "the whole file") if whole else "the whole is in the archive"
    return f'<pre tabindex="0"><code>{escape(kept)}</code></pre><p><small>{rest:,} more lines: {more}.</small></p>'


def section(title: str, body: str, name: str = "") -> str:
    """Return a part of a page with its heading; nothing where it is empty."""
    place = f' id="{escape(name)}"' if name else ""
    return f"<section{place}><h2>{escape(title)}</h2>{body}</section>" if body else ""


def pager(name: str, here: int, pages: int) -> str:
    """Return links to the pages of a list: the first, the last, and those around this one."""
    if pages < 2:
        return ""
    near = sorted({1, pages, *(n for n in range(here - 3, here + 4) if 1 <= n <= pages)})
    parts = [f'<b aria-current="page">{n}</b>' if n == here else link(f"{name}-{n}.html", str(n)) for n in near]
    return f'<nav class="pager" aria-label="Pages">{" ".join(parts)}</nav>'
