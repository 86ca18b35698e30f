"""A real MCP server by the official package: over stdio, or over streamable HTTP on the loopback port that is given."""

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("storehouse")


@server.tool()
def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return str(a + b)


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ToolError(why)


@server.tool()
async def sleep(seconds: float) -> str:
    """Answers late."""
    await asyncio.sleep(seconds)
    return "awake"


@server.tool()
def variable(name: str) -> str:
    """What the server's environment holds."""
    return os.environ.get(name, "not set")


@server.tool()
def process() -> str:
    """The server's process id."""
    return str(os.getpid())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
