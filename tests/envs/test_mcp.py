"""Tools of real MCP servers, each a process: over stdio and streamable HTTP; wrong calls, late ones, a killed server."""

import asyncio
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rti.envs.base import EnvironmentFault, FatalEnvironmentError, Task
from rti.envs.mcp import McpTools
from rti.trajectory import Message, ToolCall

COMMAND = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
needs_mcp = pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="the extra `mcp` is not installed here")


def call(tool, **arguments):
    return ToolCall(name=tool, arguments=arguments, id="call_7")


@pytest.fixture
def http_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:     # uvicorn says when it listens
        if "Uvicorn running" in line:
            break
    yield f"http://127.0.0.1:{port}/mcp", process
    process.kill()
    process.wait()
    process.stderr.close()


@needs_mcp
async def test_tools_are_listed_and_called_over_stdio_and_the_server_ends_with_the_connection():
    tools = await McpTools(COMMAND).open()
    schema = next(s for s in tools.schemas if s.name == "add")
    assert schema.description == "The sum of two numbers." and schema.parameters["type"] == "object"
    assert set(schema.parameters["properties"]) == {"a", "b"}
    reply = await tools.call(call("add", a=2, b=3))
    assert (reply.role, reply.content, reply.tool_call_id, reply.name) == ("tool", "5", "call_7", "add")
    pid = int((await tools.call(call("process"))).content)
    assert psutil.pid_exists(pid)
    await tools.close()
    await tools.close()
    assert not psutil.pid_exists(pid) and (tools.calls, tools.errors) == (2, 0)


@needs_mcp
async def test_what_an_agent_gets_wrong_is_an_error_reply_and_the_connection_goes_on():
    async with McpTools(COMMAND, limit_s=20) as tools:
        wrong = [call("no_such_tool"), call("add", a="x"), call("fail", why="out of tea"),
                 ToolCall(name="", id="call_7", error="the call is not valid JSON")]
        replies = [await tools.call(c) for c in wrong]
        assert all(r.content.startswith("Error: ") for r in replies)
        assert "no_such_tool" in replies[0].content and "out of tea" in replies[2].content
        assert (await tools.call(call("add", a=1, b=1))).content == "2" and (tools.calls, tools.errors) == (5, 4)


@needs_mcp
async def test_a_late_answer_is_an_error_and_others_are_not_held_up():
    async with McpTools(COMMAND, limit_s=20) as tools:
        tools._limit_s = 0.3
        late, quick = await asyncio.gather(tools.call(call("sleep", seconds=60)), tools.call(call("add", a=1, b=2)))
        assert late.content == "Error: sleep did not answer within 0.3 s" and quick.content == "3"


@needs_mcp
async def test_a_killed_server_is_a_fault_of_the_environment():
    async with McpTools(COMMAND, limit_s=20) as tools:
        os.kill(int((await tools.call(call("process"))).content), signal.SIGKILL)
        with pytest.raises(EnvironmentFault, match="MCP server"):
            await tools.call(call("add", a=1, b=1))


@needs_mcp
async def test_a_started_server_gets_the_variables_that_are_named_alone(monkeypatch):
    monkeypatch.setenv("STORE_KEY", "k")
    monkeypatch.setenv("OTHER_KEY", "o")
    async with McpTools(COMMAND, pass_env=["STORE_KEY"]) as tools:
        assert [(await tools.call(call("variable", name=n))).content for n in ("STORE_KEY", "OTHER_KEY")] == ["k", "not set"]
    with pytest.raises(FatalEnvironmentError, match="MISSING_KEY, which is not set here"):
        await McpTools(COMMAND, pass_env=["MISSING_KEY"]).open()


@needs_mcp
async def test_tools_are_called_over_http_and_a_server_that_is_down_is_a_fault(http_server, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    url, process = http_server
    async with McpTools(url, limit_s=20) as tools:
        assert (await tools.call(call("add", a=4, b=5))).content == "9"
        assert (await tools.call(call("fail", why="shut"))).content.startswith("Error: ")
        process.kill()
        process.wait()
        with pytest.raises(EnvironmentFault, match="MCP server"):
            await tools.call(call("add", a=1, b=1))
    with pytest.raises(EnvironmentFault, match="no connection to the MCP server"):
        await McpTools(url, limit_s=20).open()


@needs_mcp
async def test_a_command_that_is_not_there_can_never_work():
    with pytest.raises(FatalEnvironmentError, match="cannot be started"):
        await McpTools(["no-such-mcp-server"]).open()


@needs_mcp
async def test_the_example_of_the_page_plays_an_episode():
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names = {}
    exec(compile(code.replace('["python", "server.py"]', repr(COMMAND)), "mcp.md", "exec"), names)
    env = names["Served"](tools=())
    await env.reset(Task(id="t", data={"question": "2 + 2?"}, evidence={"answer": "4"}), seed=0)
    came = await env.step(Message(role="assistant", tool_calls=[call("add", a=2, b=2)]))
    assert [m.content for m in came.messages] == ["4"] and not came.done
    assert (await env.step(Message(role="assistant", content="It is 4."))).done and (await env.outcome()).success
    await env.close()


async def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(FatalEnvironmentError, match="extra `mcp`"):
        await McpTools(COMMAND).open()
