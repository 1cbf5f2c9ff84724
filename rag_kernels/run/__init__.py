"""One run: ask for drafts, judge them, archive them, confirm the winner, resume."""
