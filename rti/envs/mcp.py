"""The tools of a server of the Model Context Protocol, as a source of tools for an environment (docs/mcp.md).

    async with McpTools(["python", "server.py"], limit_s=20) as tools:      # or McpTools("http://127.0.0.1:8000/mcp")
        tools.schemas                           # what an Environment's `tools` holds
        reply = await tools.call(tool_call)     # the tool message that answers one call

Keeps: what an agent can get wrong (an unknown tool, bad arguments, a call that takes too long, the tool's own error) is a reply
that begins with `Error` and is counted in `errors`; a server that is gone is an EnvironmentFault, so that the episode is run
again and never rewarded. Needs the extra `mcp` (the official client), which is imported where it is used.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Sequence

from rti.envs.base import EnvironmentFault, FatalEnvironmentError
from rti.trajectory import Message, ToolCall, ToolSchema

MAX_PAGES = 100     # of a list of tools: a server whose list never ends must not hold an episode


class McpTools:
    """One connection; several calls may be under way at once.

    server: the words of a command that speaks the protocol over its standard input and output, or the URL of a streamable
        HTTP server.
    limit_s: seconds that connecting, and then each call, may take.
    pass_env: names of environment variables that a started server gets besides those that the client always gives it
        (PATH, HOME and the like).
    """

    def __init__(self, server: str | Sequence[str], *, limit_s: float = 30.0, pass_env: Sequence[str] = ()) -> None:
        self._server, self._limit_s, self._pass_env = server, limit_s, pass_env
        self._client: Any = None
        self._connection: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.schemas: tuple[ToolSchema, ...] = ()
        self.calls = self.errors = 0

    async def open(self) -> McpTools:
        """Connect and list the tools. Raises EnvironmentFault, or FatalEnvironmentError where that can never work."""
        opened = asyncio.get_running_loop().create_future()
        # A task of its own holds the connection: the client has to be left by the task that entered it, and an environment
        # may be closed by another one than that which reset it.
        self._connection = asyncio.create_task(self._hold(opened))
        try:
            async with asyncio.timeout(self._limit_s):
                self.schemas = await opened
        except TimeoutError:
            await self.close()
            raise EnvironmentFault(f"the MCP server {self._named} did not list its tools within {self._limit_s:g} s") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def call(self, call: ToolCall) -> Message:
        """The tool message that answers a call. Raises EnvironmentFault where the server is gone."""
        self.calls += 1
        text, failed = (call.error, True) if call.error else await self._ask(call)
        self.errors += failed
        return Message(role="tool", tool_call_id=call.id, name=call.name, content=f"Error: {text}" if failed else text)

    async def close(self) -> None:
        """Disconnect, and end a server that was started. May be called twice."""
        self._closing.set()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            done, _ = await asyncio.wait([connection], timeout=self._limit_s)
            if not done:
                connection.cancel()
                await asyncio.wait([connection], timeout=self._limit_s)
        self._client = None

    async def __aenter__(self) -> McpTools:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _named(self) -> str:
        return self._server if isinstance(self._server, str) else " ".join(self._server)

    async def _hold(self, opened: asyncio.Future[tuple[ToolSchema, ...]]) -> None:
        """Connect, say so, and stay connected until close()."""
        try:
            mcp = _library()
            async with mcp.Client(self._transport(mcp)) as client:
                tools = await _listed(client)
                self._client = client
                if not opened.done():       # else the one who waited has given up
                    opened.set_result(tools)
                await self._closing.wait()
        except FatalEnvironmentError as e:
            _fail(opened, e)
        except (FileNotFoundError, PermissionError) as e:
            _fail(opened, FatalEnvironmentError(f"the MCP server {self._named} cannot be started: {e}"))
        except Exception as e:      # whatever the transport raises, the connection is gone: a fault, not a reward
            _fail(opened, EnvironmentFault(f"no connection to the MCP server {self._named}: {_first(e)}"))
        finally:
            self._client = None

    def _transport(self, mcp: Any) -> Any:
        if isinstance(self._server, str):
            return self._server
        if missing := [name for name in self._pass_env if name not in os.environ]:
            raise FatalEnvironmentError(f"the MCP server {self._named} is to get {', '.join(missing)}, which is not set here; "
                                        "export it before the run")
        command, *words = self._server
        return mcp.StdioServerParameters(command=command, args=words, env={n: os.environ[n] for n in self._pass_env})

    async def _ask(self, call: ToolCall) -> tuple[str, bool]:
        """(text, whether it is an error)"""
        mcp = _library()
        if self._client is None:
            raise EnvironmentFault(f"the connection to the MCP server {self._named} is closed")
        if call.name not in {schema.name for schema in self.schemas}:
            return f"there is no tool {call.name!r}", True
        try:
            async with asyncio.timeout(self._limit_s):
                result = await self._client.call_tool(call.name, call.arguments)
        except TimeoutError:
            return f"{call.name} did not answer within {self._limit_s:g} s", True
        except mcp.MCPError as e:
            if e.error.code == mcp.types.CONNECTION_CLOSED:
                raise EnvironmentFault(f"the MCP server {self._named} is gone: {e}") from e
            return str(e), True
        except Exception as e:
            raise EnvironmentFault(f"the MCP server {self._named} did not answer {call.name}: {_first(e)}") from e
        return _text(result), result.is_error


async def _listed(client: Any) -> tuple[ToolSchema, ...]:
    """All tools, page by page."""
    found: list[Any] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return tuple(ToolSchema(name=t.name, description=t.description or "", parameters=_parameters(t.input_schema))
                 for t in found)


def _parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `properties`, which the protocol lets a tool without arguments leave out."""
    return {"properties": {}, **schema}


def _text(result: Any) -> str:
    """What an agent reads of a result: its texts; for any other content what kind it is."""
    return "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in result.content)


def _fail(opened: asyncio.Future[Any], error: Exception) -> None:
    if not opened.done():
        opened.set_exception(error)


def _first(error: BaseException) -> str:
    """The first error inside nested groups, which is what happened; its type where it has no words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _library() -> Any:
    try:
        import mcp
    except ImportError as e:
        raise FatalEnvironmentError("tools of an MCP server need the package mcp, which is not installed here; install RTI "
                                    "with its extra `mcp`") from e
    return mcp
