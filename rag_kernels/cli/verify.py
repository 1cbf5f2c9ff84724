"""`rag-kernels verify`: judge exported packages again, from the evidence that they carry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rag_kernels.cli.generate import watch
from rag_kernels.cli.shared.busy import busy
from rag_kernels.cli.shared.common import ArchivePlace, Json, emit, end_politely, read_options

if TYPE_CHECKING:
    from rag_kernels.archive.records import Attempt
    from rag_kernels.export.check import Checked
    from rag_kernels.export.evidence import Pulled
    from rag_kernels.run.session import Session


def verify(
    packages: Annotated[list[Path], typer.Argument(metavar="PACKAGE", help="Files or folders of `export`.")],
    confirm: Annotated[bool, typer.Option(help="Judge a passed kernel once more in a fresh process.")] = True,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Judge exported packages again on this machine, and say whether they are what their evidence speaks of.

    The problem and the kernel are those of the evidence; a package's files are compared with it and never run. A
    kernel of several packages is judged once. Exit code: 0 when the kernels pass and all files agree, else 1. Nothing
    is archived unless --archive names a place.

    Example: rag-kernels verify softmax-torch-op
    """
    with busy("comparing the files with their evidence"):
        from rag_kernels.export.check import check_package
        from rag_kernels.wiring import open_session

        checked = [(package, check_package(package)) for package in packages]
    options = read_options(archive=archive or ":memory:")
    end_politely()
    held = []
    for backend in dict.fromkeys(_here(one).candidate.backend for _, one in checked):
        ours = [(package, one) for package, one in checked if _here(one).candidate.backend == backend]
        with ExitStack() as opened:
            with busy("opening the archive"):
                session = opened.enter_context(open_session(options, backend=backend))
            judging = _Judging(session, confirm=confirm, as_json=as_json)
            held += [judging.holds(package, one) for package, one in ours]
    raise typer.Exit(0 if all(held) else 1)


def _here(checked: Checked) -> Attempt:
    """Return the kernel of a package that this machine can judge best."""
    import torch

    here = "cuda" if torch.cuda.is_available() else "cpu"
    return min(checked.attempts, key=lambda a: a.candidate.backend != here)


class _Judging:
    """Judges what packages hold, each kernel once."""

    def __init__(self, session: Session, *, confirm: bool, as_json: bool) -> None:
        self.session, self.confirm, self.as_json = session, confirm, as_json
        self.judged: dict[tuple[str, str], Sequence[Attempt]] = {}

    def holds(self, package: Path, checked: Checked) -> bool:
        """Judge a package's kernel, tell of it, and return whether it passes and its texts agree."""
        from rag_kernels.eval.told import told
        from rag_kernels.report.json_rows import result_row

        attempt = _here(checked)
        if not self.as_json:
            _tell(package, checked, attempt)
        attempts = self._attempts(attempt)
        why_not = _why_not(attempts, "It does")
        if not why_not and (pulled := checked.backwards.get(attempt.candidate.id)) is not None:
            why_not = self._why_not_gradients(pulled)
        right = not why_not
        if self.as_json:
            row = result_row(attempts, run_id=None, problem=attempt.problem.problem.name)
            files = {"other_texts": list(checked.other_texts), "other_libraries": list(checked.other_libraries)}
            named = {"package": str(package), "form": checked.form, "kernel_id": attempt.candidate.id}
            emit("verified", {**row, **named, "holds": right, "why_not": why_not, **files})
        elif right:
            after = told(attempts[-1].judged)
            print(f"It passes here{f', {after.speedup:.2f}x the better baseline' if after else ''}.")
        else:
            print(why_not)
        return right and not checked.other_texts

    def _why_not_gradients(self, pulled: Pulled) -> str:
        """Return why a file's gradients are not what it says; "" where its kernel for them passes, by their names."""
        from rag_kernels.ingest.functional.gradients import gradient_names

        why_not = _why_not(self._attempts(pulled.attempt), "Its kernel for the gradients does")
        if why_not or gradient_names(pulled.attempt.problem) == pulled.names:
            return why_not
        return "Its kernel for the gradients gives those of other arguments than it says: export it again."

    def _attempts(self, attempt: Attempt) -> Sequence[Attempt]:
        """Return what came of a kernel; nothing where it was interrupted."""
        key = attempt.problem.problem.id, attempt.candidate.id
        if key not in self.judged:
            problem = attempt.problem.problem
            judging = self.session.evaluate(problem, attempt.candidate, confirm=self.confirm)
            attempts, finished = watch(judging, problem.name, as_json=self.as_json, brief=True)
            if not finished:
                raise typer.Exit(1)
            self.judged[key] = attempts
        return self.judged[key]


def _why_not(attempts: Sequence[Attempt], what: str) -> str:
    """Return that a kernel does not pass, and why; "" where it does."""
    from rag_kernels.eval.records import Passed, verdict_name

    verdict = attempts[-1].judged.verdict
    if isinstance(verdict, Passed):
        return ""
    return f"{what} not pass here: {verdict_name(verdict)}, {getattr(verdict, 'reason', '')}"


def _tell(package: Path, checked: Checked, attempt: Attempt) -> None:
    from rag_kernels.eval.told import told

    before = told(attempt.judged)
    speed = f"{before.speedup:.2f}x" if before else "not timed"
    print(f"{package}: {checked.form} of {attempt.problem.problem.name}, kernel {attempt.candidate.id}")
    print(f"  its evidence: passed, {speed}, {attempt.created_at[:10]} on {attempt.judged.device.name}")
    for other in checked.attempts:
        if other is not attempt:
            print(f"  its kernel for {other.candidate.backend}, {other.candidate.id}, is not judged here")
    if (pulled := checked.backwards.get(attempt.candidate.id)) is not None:
        print(f"  its kernel for the gradients, {pulled.attempt.candidate.id}, is judged too")
    for name in checked.other_texts:
        print(f"  {name} is not what its evidence says: it was changed, or another version wrote it")
    for name in checked.other_libraries:
        print(f"  {name} has other bytes than this machine's compiler makes of the source")
