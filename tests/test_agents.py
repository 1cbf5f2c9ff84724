"""The judge as coding agents have it: over stdio and HTTP, with the client of the protocol's own SDK."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from cli_home import QUICK, RELU, RIGHT, SLOW, WRONG, environment, stocked_archive

if TYPE_CHECKING:  # takes two seconds, in whichever process collects tests
    from mcp import Client, StdioServerParameters
    from mcp.types import CallToolResult

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed")

COMMAND = ["-c", QUICK, "mcp", "--device", "cpu"]
Talk = Callable[["Client"], Awaitable[None]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agents")
    (folder / "relu.py").write_text(RELU.problem.source)
    (folder / "slow.cpp").write_text(SLOW)
    (folder.parent / "elsewhere.py").write_text(RELU.problem.source)
    stocked_archive(folder / ".local" / "share" / "rag-kernels" / "archive")
    return folder


@contextmanager
def serving(home: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *COMMAND, "--http", str(port)]
    process = subprocess.Popen(command, cwd=home, env=environment(home))
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        assert process.wait(60) == 0


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[str]:
    """One server over HTTP for all tests that need no start of their own."""
    with serving(home) as url:
        yield url


def talk(server: str | StdioServerParameters, say: Talk) -> None:
    from mcp import Client

    async def session() -> None:
        async with Client(server) as client:
            await say(client)

    anyio.run(session)


def result(called: CallToolResult) -> Any:
    assert not called.is_error, called.content
    assert isinstance(called.structured_content, dict)
    return called.structured_content


def refusal(called: CallToolResult) -> str:
    [said] = called.content
    assert called.is_error and said.type == "text"
    return said.text


async def text(client: Client, uri: str) -> str:
    [content] = (await client.read_resource(uri)).contents
    assert hasattr(content, "text")
    return content.text


def test_an_agent_describes_writes_judges_and_finds_again(home: Path) -> None:
    """Over stdio: it starts a server and ends it."""

    async def say(client: Client) -> None:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {
            *("describe_problem", "search_kernels", "judge_kernel", "compare", "generate", "judge_status", "cancel")
        }
        problem = result(await client.call_tool("describe_problem", {"problem": "relu.py"}))
        assert [a["cpp_type"] for a in problem["arguments"]] == [
            "rk::Tensor<const float>",
            "double",
            "rk::Tensor<float>",
        ]
        assert problem["floor_us"] > 0 and not problem["degenerate"] and "RK_EXPORT" in problem["kernel_signature"]

        told: list[str] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.append(message or "")

        judged = result(
            await client.call_tool(
                "judge_kernel",
                {"problem": "relu.py", "source": RIGHT, "confirm": True},
                progress_callback=progress,
            )
        )
        assert judged["state"] == "done" and [r["verdict"] for r in judged["results"]] == ["passed", "passed"]
        first, confirmed = judged["results"]
        assert first["at_least"] and not confirmed["at_least"] and confirmed["speedup"] > 0
        assert told and "judge k_" in told[0]

        wrong = result(await client.call_tool("judge_kernel", {"problem": "relu.py", "source": WRONG}))
        assert wrong["results"][0]["verdict"] == "wrong" and wrong["results"][0]["wrong_on"]
        assert "the numbers are wrong" in wrong["results"][0]["feedback"] and "limit" not in json.dumps(wrong)

        few = WRONG.replace("double factor, ", "").replace("float(factor)", "2.0f")
        crashed = result(await client.call_tool("judge_kernel", {"problem": "relu.py", "source": few}))["results"][0]
        assert few != WRONG and crashed["verdict"] == "crashed" and problem["kernel_signature"] in crashed["feedback"]

        found = result(await client.call_tool("search_kernels", {"problem": "relu.py", "count": 3}))["result"]
        assert found[0]["kernel_id"] == confirmed["kernel_id"] and found[0]["trust"] == "confirmed"
        source = await text(client, found[0]["uri"])
        assert source.startswith(f"// {confirmed['kernel_id']} for relu: confirmed, ") and source.endswith(RIGHT)
        assert "module_fn" in await text(client, f"problem://{confirmed['kernel_id']}")

        raced = result(
            await client.call_tool(
                "compare", {"problem": "relu.py", "one": confirmed["kernel_id"], "other": "slow.cpp"}
            )
        )
        assert "times as fast as the second (" in raced["message"] and len(raced["results"]) == 2

    from mcp import StdioServerParameters

    started = StdioServerParameters(command=sys.executable, args=COMMAND, env=environment(home), cwd=home)
    talk(started, say)


def test_what_an_agent_can_mend_is_said_and_nothing_outside_the_root_is_read(home: Path, server: str) -> None:
    from mcp import MCPError

    async def say(client: Client) -> None:
        async def refused(tool: str, **asked: object) -> str:
            return refusal(await client.call_tool(tool, asked))

        assert "lies outside of" in await refused("describe_problem", problem="../elsewhere.py")
        (home / "link.py").symlink_to(home.parent / "elsewhere.py")
        assert "lies outside of" in await refused("describe_problem", problem="link.py")
        assert "lies outside of" in await refused("judge_kernel", problem="relu.py", kernel="/etc/hostname")
        assert "There is no file none.py" in await refused("judge_kernel", problem="none.py", source=RIGHT)
        assert "Give `kernel`" in await refused("judge_kernel", problem="relu.py")
        assert "RK_EXPORT" in await refused("judge_kernel", problem="relu.py", source="int main() {}")
        assert "This is cuda code" in await refused(
            "judge_kernel", problem="relu.py", source="__global__ void f() {}\nRK_EXPORT(forward, f)"
        )
        assert "There is no job" in await refused("judge_status", job="j_none")
        assert "There is no kernel 'k_none'" in await refused("search_kernels", kernel="k_none")
        assert "one of these" in await refused("search_kernels")
        assert "less than or equal to 50" in await refused("search_kernels", words="relu", count=51)
        with pytest.raises(MCPError, match="There is no kernel"):
            await client.read_resource("kernel://k_none")

    talk(server, say)


def test_long_work_is_a_job_that_can_be_looked_up_and_called_off(server: str) -> None:
    async def say(client: Client) -> None:
        asked = {"problem": "relu.py", "source": RIGHT + "// once more\n", "wait_s": 0}
        first, second = [result(await client.call_tool("judge_kernel", asked)) for _ in range(2)]
        assert first["state"] in ("queued", "running") and second["state"] == "queued" and not second["results"]
        called_off = result(await client.call_tool("cancel", {"job": second["job"]}))
        done = result(await client.call_tool("judge_status", {"job": first["job"], "wait_s": 240}))
        assert done["state"] == "done" and done["results"][0]["verdict"] == "passed"
        ended = result(await client.call_tool("judge_status", {"job": second["job"], "wait_s": 60}))
        assert called_off["state"] in ("queued", "cancelled") and ended["state"] == "cancelled" and not ended["results"]

    talk(server, say)


def test_the_offline_writer_is_a_collaborator_and_texts_are_there_to_read(server: str) -> None:
    async def say(client: Client) -> None:
        made = result(await client.call_tool("generate", {"problem": "relu.py", "rounds": 1, "seconds": 60}))
        assert made["state"] == "done" and "Run r_" in made["message"]
        assert any(r["verdict"] == "passed" for r in made["results"])
        best = made["results"][-1]["kernel_id"]
        templates = {t.uri_template for t in (await client.list_resource_templates()).resource_templates}
        assert templates == {"kernel://{kernel_id}", "problem://{kernel_id}", "contract://header/{name}"}
        assert "# The contract: one source text" in await text(client, "contract://kernel")
        assert "namespace rk" in await text(client, "contract://header")
        assert "tma_load" in await text(client, "contract://header/rag_tma.h")
        assert json.loads(await text(client, "device://this"))["backend"] == "cpu"
        prompts = {p.name for p in (await client.list_prompts()).prompts}
        assert prompts == {"write_kernel", "speed_up"}
        [said] = (await client.get_prompt("speed_up", {"kernel_id": best})).messages
        assert said.content.type == "text" and "Make this kernel faster." in said.content.text

    talk(server, say)


def test_words_find_kernels(server: str) -> None:
    async def say(client: Client) -> None:
        found = result(await client.call_tool("search_kernels", {"words": "softmax", "count": 2}))["result"]
        assert len(found) == 2 and all("softmax" in one["problem"] for one in found)

    talk(server, say)


def test_no_tool_takes_or_tells_what_the_judge_keeps_to_itself(server: str) -> None:
    """Tolerances, seeds and expected values are neither arguments nor fields."""

    async def say(client: Client) -> None:
        for tool in (await client.list_tools()).tools:
            names = json.dumps([tool.input_schema, tool.output_schema]).lower()
            assert not [word for word in ("seed", "tolerance", "atol", "rtol", "expected") if word in names], tool.name

    talk(server, say)


def test_the_skill_names_tools_that_there_are(server: str) -> None:
    from rag_kernels.agents.setup_files import SKILL

    async def say(client: Client) -> None:
        known = {tool.name for tool in (await client.list_tools()).tools}
        named = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)\([a-z.]", (SKILL / "SKILL.md").read_text()))
        assert named and named <= known

    talk(server, say)
