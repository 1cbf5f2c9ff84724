"""A search over a provider that fails: is every good reply used once, and is the bill exact? Prints a Markdown table.

    .venv/bin/python tests/bench/llm_faults.py [--drafts 330] [--seed 0]

Three in ten of some 500 requests to a server on loopback end in 429, 500, silence, a cut stream or garbage. The client
is litellm, the archive a file in a folder that is removed; the judge is scripted.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from llm_trials import FAULTS, fault_trial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafts", type=int, default=330)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = "sk-test-0123456789abcdef"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        books = fault_trial(Path(folder) / "archive", drafts=asked.drafts, width=asked.width, seed=asked.seed)
    seconds = time.monotonic() - started
    faults = ", ".join(f"{books.faults[name]} {name}" for name in FAULTS)
    rows = {
        "requests": books.requests,
        "faults": f"{sum(books.faults.values())} ({faults})",
        "good replies": books.good,
        "kernels written": books.kernels,
        "kernels judged": len({a.candidate.id for a in books.attempts}),
        "tokens said by the server": books.billed_tokens,
        "tokens in the ledger": books.spent.tokens,
        "dollars by the server's tokens": f"{books.billed_usd:.6f}",
        "dollars in the ledger": f"{books.spent.usd:.6f}",
        "calls of unknown cost (broken replies)": books.spent.unpriced_calls,
        "what does not agree": "; ".join(books.wrong) or "nothing",
        "seconds": f"{seconds:.0f}",
    }
    print("| | |\n|---|---:|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")
    sys.exit(bool(books.wrong))


if __name__ == "__main__":
    main()
