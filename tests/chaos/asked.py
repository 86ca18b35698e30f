"""Luck whose user is asked over the network: one chat request a turn, to a service that a test kills or slows down.

    python -m tests.chaos.asked PORT      the service, on loopback: it always says what Luck's own user says
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rti.config.schema import EndpointConfig
from rti.engines.endpoint import ChatEndpoint, EndpointError
from rti.envs.base import EnvironmentFault, StepResult
from rti.trajectory import Message
from tests.end_to_end.luck import Luck, LuckTasks

WORDS = "go on"


class AskedTasks(LuckTasks):
    """See LuckTasks. `url`: base address of the service."""

    def __init__(self, url: str, **options):
        super().__init__(**options)
        self._user = ChatEndpoint(EndpointConfig(base_url=url, model="user", retries=1, timeout_s=20))

    def make(self) -> Luck:
        return AskedLuck(self._user, self._percent, self._delay_s, self._breaks)

    async def close(self) -> None:
        await self._user.close()


class AskedLuck(Luck):
    def __init__(self, user: ChatEndpoint, *options):
        super().__init__(*options)
        self._user = user

    async def step(self, message: Message) -> StepResult:
        result = await super().step(message)
        try:
            said = await self._user.complete([Message(role="user", content=WORDS)], temperature=0.0, max_tokens=8)
        except EndpointError as e:
            raise EnvironmentFault(str(e)) from e
        answers = [Message(role="user", content=said) if m.role == "user" else m for m in result.messages]
        return StepResult(messages=answers, done=result.done)


class Service(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": WORDS}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Service).serve_forever()
