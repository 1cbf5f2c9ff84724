"""The desk over the Model Context Protocol: tools, resources and prompts, by the protocol's own SDK.

Comes in: a `Desk`. Goes out: a server, to be run over stdio or HTTP. What a model can mend is an error of the tool with
its sentence; a kernel that is wrong is a result. Long work is a job: a tool waits for it as long as it is told, says
how it stands meanwhile, and then hands it over to `judge_status`. Needs the extra `mcp`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, TypeVar

from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from rag_kernels.agents.desk import Desk
from rag_kernels.agents.jobs import Job
from rag_kernels.agents.records import DescribedProblem, FoundKernel, JobReport
from rag_kernels.eval.build.headers import PIECES
from rag_kernels.eval.errors import Internal, RagKernelsError
from rag_kernels.eval.places import INCLUDE
from rag_kernels.version import __version__

INSTRUCTIONS = (
    "Write a kernel for a PyTorch problem and have it judged. Read contract://kernel, ask describe_problem, look at "
    "what search_kernels finds, then judge_kernel until it is right and fast, and once more with confirm=true. The "
    "verdict is made in the judge's own processes, on contents that nobody knows beforehand."
)
TICK_S = 1.0
LOOKS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
WORKS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

ProblemPath = Annotated[str, Field(description="A KernelBench file, by its path below the server's root.")]
AnyKernel = Annotated[str, Field(description="A file below the root (.cpp, .cu, .py), or an archived kernel's id.")]
WaitS = Annotated[float, Field(ge=0, le=3600, description="Seconds to wait for the end; then ask judge_status.")]
Found = TypeVar("Found")


def make_server(desk: Desk) -> MCPServer:
    """Return the server of a desk."""
    server = MCPServer("rag-kernels", version=__version__, instructions=INSTRUCTIONS)
    tools = _Tools(desk)
    for look in (tools.describe_problem, tools.search_kernels):
        server.add_tool(look, annotations=LOOKS, structured_output=True)
    for work in (tools.judge_kernel, tools.compare, tools.generate, tools.judge_status, tools.cancel):
        server.add_tool(work, annotations=WORKS, structured_output=True)
    _add_texts(server, desk)
    return server


class _Tools:
    """The tools: their signatures and docstrings are what a model reads."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def describe_problem(self, problem: ProblemPath, ctx: Context) -> DescribedProblem:
        """Show a problem as a call: arguments in order, the signature of a kernel, the floor on this device, and
        whether a kernel that computes nothing would pass. Nothing is timed.
        """
        return await _off_thread(lambda: self._desk.describe(problem))

    async def search_kernels(
        self,
        words: Annotated[str, Field(description="Operators, names, ideas: 'fused layernorm gelu'.")] = "",
        problem: Annotated[str, Field(description="Instead: a problem's path, to find kernels for ones like it.")] = "",
        kernel: Annotated[str, Field(description="Instead: a kernel's id, to find what may speed it up.")] = "",
        bottleneck: Annotated[
            Literal["memory", "arithmetic", "library", "overhead"] | None,
            Field(description="What holds your kernel back: kernels that know a remedy come first."),
        ] = None,
        count: Annotated[int, Field(ge=1, le=50)] = 5,
    ) -> list[FoundKernel]:
        """Find archived kernels, best first, with why. Read their text at `uri`. Trust: a claimed one was not judged
        here.
        """
        return await _off_thread(
            lambda: self._desk.search(words, problem=problem, kernel=kernel, bottleneck=bottleneck, count=count)
        )

    async def judge_kernel(
        self,
        problem: ProblemPath,
        ctx: Context,
        kernel: AnyKernel = "",
        source: Annotated[str, Field(description="Instead of `kernel`: the whole source text.")] = "",
        confirm: Annotated[bool, Field(description="If it passes, judge it again in a fresh process.")] = False,
        wait_s: WaitS = 240.0,
    ) -> JobReport:
        """Build a kernel, check it against a float64 reference on fresh inputs, and time it against eager PyTorch and
        torch.compile. A kernel that fails is a result, whose `feedback` says what to look at. Seconds to minutes.
        """
        with _for_the_model():
            job = self._desk.judge(problem, self._desk.candidate(kernel, source), confirm=confirm)
        return await _waited(job, wait_s, ctx)

    async def compare(
        self, problem: ProblemPath, one: AnyKernel, other: AnyKernel, ctx: Context, wait_s: WaitS = 240.0
    ) -> JobReport:
        """Judge two kernels one after the other, each raced against eager in pairs; `message` says which is faster,
        with an interval.
        """
        with _for_the_model():
            job = self._desk.compare(problem, self._desk.candidate(one), self._desk.candidate(other))
        return await _waited(job, wait_s, ctx)

    async def generate(
        self,
        problem: ProblemPath,
        ctx: Context,
        rounds: Annotated[int, Field(ge=1, le=20)] = 1,
        seconds: Annotated[float, Field(ge=1, le=7200, description="Begin no further draft after these.")] = 300.0,
        wait_s: WaitS = 240.0,
    ) -> JobReport:
        """Have the server's own writer draft, judge and archive kernels for a problem: a first draft to start from."""
        with _for_the_model():
            job = self._desk.generate(problem, rounds=rounds, seconds=seconds)
        return await _waited(job, wait_s, ctx)

    async def judge_status(self, job: str, ctx: Context, wait_s: WaitS = 0.0) -> JobReport:
        """Say how a job stands, with its results so far."""
        with _for_the_model():
            found = self._desk.job(job)
        return await _waited(found, wait_s, ctx)

    async def cancel(self, job: str, ctx: Context) -> JobReport:
        """Call a job off: one that waits never begins, one that runs ends with the verdict that is under way."""
        with _for_the_model():
            found = self._desk.job(job)
        self._desk.jobs.cancel(found)
        return await _waited(found, TICK_S, ctx)


def _add_texts(server: MCPServer, desk: Desk) -> None:
    """Add the texts to read, and the prompts that begin with them."""

    @server.resource("kernel://{kernel_id}", mime_type="text/plain")
    async def kernel(kernel_id: str) -> str:
        """Return an archived kernel's source, under lines that say what it is and how it was judged."""
        return await _read(lambda: desk.kernel_text(kernel_id))

    @server.resource("problem://{kernel_id}", mime_type="text/x-python")
    async def problem(kernel_id: str) -> str:
        """Return the problem that an archived kernel was written for, as a call of PyTorch."""
        return await _read(lambda: desk.problem_text(kernel_id))

    @server.resource("contract://kernel", mime_type="text/markdown")
    async def contract() -> str:
        """Return what a kernel must look like, with worked examples, and what the judge refuses."""
        return await _read(desk.contract)

    @server.resource("contract://header", mime_type="text/plain")
    async def header() -> str:
        """Return the header that every kernel includes."""
        return (INCLUDE / "rag_kernel.h").read_text()

    @server.resource("contract://header/{name}", mime_type="text/plain")
    async def piece(name: str) -> str:
        """Return a header for CUDA kernels.

        `rag_tma.h` (copy engine, barriers, clusters) or `rag_mma.h` (tensor cores).
        """
        if name not in PIECES:
            raise ResourceNotFoundError(f"There is no header {name!r}: take one of {', '.join(PIECES)}.")
        return (INCLUDE / name).read_text()

    @server.resource("device://this", mime_type="application/json")
    async def device() -> str:
        """Return the device that kernels are judged on, with its measured rates."""
        return await _read(desk.device_text)

    @server.prompt()
    async def write_kernel(problem: str) -> str:
        """Begin to write a kernel for a problem."""
        return (
            f"Read contract://kernel, then call describe_problem with problem={problem!r} and search_kernels with the "
            "same. Say in one sentence what limits the speed and what you will do about it. Write the kernel into a "
            "file below the root, call judge_kernel, and go on by its feedback until nothing more is to be gained; "
            "then call it with confirm=true."
        )

    @server.prompt()
    async def speed_up(kernel_id: str) -> str:
        """Begin to speed up an archived kernel."""
        return await _read(lambda: desk.speed_up(kernel_id))


async def _off_thread(look: Callable[[], Found]) -> Found:
    with _for_the_model():
        return await to_thread.run_sync(look)


async def _read(text: Callable[[], str]) -> str:
    try:
        return await to_thread.run_sync(text)
    except RagKernelsError as error:
        raise ResourceNotFoundError(str(error)) from None


@contextmanager
def _for_the_model() -> Iterator[None]:
    """Turn what the asker can mend into an error of the tool; a fault of ours stays one."""
    try:
        yield
    except RagKernelsError as error:
        if isinstance(error, Internal):
            raise
        raise ToolError(str(error)) from None


async def _waited(job: Job, wait_s: float, ctx: Context) -> JobReport:
    """Return how a job stands when it has ended, or after so many seconds; meanwhile tell the client each second."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < wait_s and not job.ended.is_set():
        await to_thread.run_sync(job.ended.wait, min(TICK_S, wait_s - passed))
        report = job.report()
        await ctx.report_progress(time.monotonic() - began, None, f"{job.what}: {report.state}, {report.seconds:.0f} s")
    return job.report()
