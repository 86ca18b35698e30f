"""A sandbox for tools that run commands or touch files (Bash, Read, Write, Edit, Glob, Grep), one an episode.

Keeps: no network, none of the host's files but the software under /usr (read only), none of its environment; a writable folder
in memory that vanishes with the sandbox; nothing outlives an episode, nor a worker that was killed. Where that cannot be had it
is refused with the reason and the mend: a command is never run on the bare host. The inner side is sandbox_inside.py.

By bubblewrap (user, process, network, mount, IPC and host name namespaces, and the filter of seccomp.py), or, where a
configuration names one, by a container engine. A worker that is root runs bubblewrap as nobody.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Sequence

from rti.envs.base import EnvironmentFault, FatalEnvironmentError
from rti.envs.claw_eval import seccomp
from rti.trajectory import ToolSchema

HOME = "/workspace"
_INSIDE = Path(__file__).with_name("sandbox_inside.py")
_BOOT = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[2])))"      # so that a list of processes stays readable
_NOBODY = 65534
_GRACE_S = 20.0     # for a busy machine, beyond the limit that the inner side keeps
_MEND = ("mend: install bubblewrap 0.8 or later (Debian and Ubuntu: apt-get install bubblewrap; Fedora: dnf install "
         "bubblewrap), or name a container engine (engine docker or podman, and an image that holds python3 and bash)")


@dataclass(frozen=True)
class Limits:
    """Of one call, over all its processes together unless said otherwise. `disk_mb` and `files` hold for the whole episode."""

    wall_s: float = 30.0
    cpu_s: float = 30.0
    memory_mb: int = 512
    processes: int = 64
    file_mb: int = 32       # one file
    disk_mb: int = 64       # the workspace; /tmp has as much
    files: int = 20_000
    output_chars: int = 30_000

    def inside(self) -> str:
        """As sandbox_inside.py reads them."""
        bytes_ = {f"{k}_bytes": getattr(self, f"{k}_mb") << 20 for k in ("memory", "file", "disk")}
        return json.dumps({**asdict(self), **bytes_, "output_bytes": self.output_chars})


@dataclass(frozen=True)
class Result:
    """What a call gave: both streams together, cut after the limit (`left_out` bytes). `code` is the exit code, negative for a
    signal. `ended`: exit, or the limit that ended it (time, cpu, memory, processes, files)."""

    output: str
    code: int = 0
    ended: str = "exit"
    left_out: int = 0

    @property
    def is_error(self) -> bool:
        return self.code != 0 or self.ended != "exit"

    def text(self) -> str:
        """As the agent reads it."""
        parts = [self.output] if self.output else []
        if self.left_out:
            parts.append(f"[{self.left_out} more bytes left out]")
        if self.ended != "exit":
            parts.append(f"[ended by its limit of {self.ended}]")
        elif self.code:
            parts.append(f"[exit code {self.code}]")
        return "\n".join(parts) or "[no output]"


def _schema(name: str, description: str, required: Sequence[str], **properties: tuple[str, str]) -> ToolSchema:
    kinds = {k: {"type": kind, "description": text} for k, (kind, text) in properties.items()}
    return ToolSchema(name=name, description=description,
                      parameters={"type": "object", "properties": kinds, "required": list(required)})


TOOLS = (
    _schema("Bash", f"Runs a command with bash in {HOME} and gives its output. No network; nothing keeps running after it.",
            ["command"], command=("string", "the command"), timeout=("integer", "time limit in milliseconds")),
    _schema("Read", f"Gives the text of a file under {HOME}.", ["file_path"], file_path=("string", "the file"),
            offset=("integer", "first line, from 1"), limit=("integer", "number of lines")),
    _schema("Write", f"Writes a file under {HOME}; what was there is replaced, folders are made.", ["file_path", "content"],
            file_path=("string", "the file"), content=("string", "its whole text")),
    _schema("Edit", "Replaces a text in a file. It must be there once, unless replace_all is set.",
            ["file_path", "old_string", "new_string"], file_path=("string", "the file"),
            old_string=("string", "text to replace"), new_string=("string", "text in its place"),
            replace_all=("boolean", "replace every occurrence")),
    _schema("Glob", "Gives the files that a pattern matches, such as **/*.py.", ["pattern"], pattern=("string", "the pattern"),
            path=("string", f"folder to look in (default: {HOME})")),
    _schema("Grep", "Searches files for a regular expression.", ["pattern"], pattern=("string", "the expression"),
            path=("string", f"file or folder to search (default: {HOME})"), glob=("string", "only files of such a name"),
            output_mode=("string", "content, files_with_matches (default) or count"),
            case_insensitive=("boolean", "upper and lower case alike"), multiline=("boolean", "let . match line ends"),
            context_lines=("integer", "lines shown around a match"), head_limit=("integer", "entries shown")),
)
_NAMES = {t.name for t in TOOLS}


# --- whether there can be one ------------------------------------------------------------------------------------
def python() -> str:
    """The python3 under /usr that serves inside, "" for none."""
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    return found if found and os.path.realpath(found).startswith("/usr/") else ""


@functools.cache
def refusal(engine: str = "bwrap") -> str:
    """Why no sandbox can be made by `engine` (bwrap, docker, podman) here, with the mend; "" where one can."""
    if engine != "bwrap":
        return "" if shutil.which(engine) else f"commands need a sandbox, and there is no {engine} on the PATH; {_MEND}"
    if sys.platform != "linux" or not seccomp.machine():
        return f"commands need a sandbox, and bubblewrap is for Linux on x86_64 or aarch64; {_MEND}"
    if not shutil.which("bwrap"):
        return f"commands need a sandbox, and there is no bubblewrap (bwrap) on the PATH; {_MEND}"
    if not python():
        return f"commands need a sandbox, which needs a python3 under /usr, and there is none; {_MEND}"
    tried = subprocess.run(bwrap_argv(Limits(), -1) + ["true"], capture_output=True, text=True, timeout=60, **_as_nobody())
    if tried.returncode:
        return (f"commands need a sandbox, and bubblewrap cannot make one here ({' '.join(tried.stderr.split())[:300]}): user "
                f"namespaces may be switched off (sysctl user.max_user_namespaces, "
                f"kernel.apparmor_restrict_unprivileged_userns) or the release may be older than 0.8; {_MEND}")
    return ""


def _as_nobody() -> dict[str, Any]:
    """Root runs it as nobody: the kernel does not count root's processes, and nothing is left to win by getting out."""
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


# --- how one is made ---------------------------------------------------------------------------------------------
def bwrap_argv(limits: Limits, filter_fd: int) -> list[str]:
    """bwrap's arguments up to the command. `filter_fd`: where it reads seccomp.program from; below 0 for none."""
    disk, small = str(limits.disk_mb << 20), str(min(16, limits.disk_mb) << 20)
    argv = ["bwrap", "--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1",
            "--clearenv", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):      # what programs under /usr are found by
        argv += ["--ro-bind-try", path, path]
    argv += ["--proc", "/proc", "--dev", "/dev", "--size", small, "--tmpfs", "/dev/shm", "--size", disk, "--tmpfs", "/tmp",
             "--size", disk, "--tmpfs", HOME, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME]
    return argv + (["--seccomp", str(filter_fd)] if filter_fd >= 0 else [])


def container_argv(engine: str, image: str, limits: Limits) -> list[str]:
    """The same by a container engine, up to the command. The container ends when its stdin does, and is removed."""
    disk = f"size={limits.disk_mb}m,nr_inodes={limits.files},mode=1777,exec"
    return [engine, "run", "--rm", "--interactive", "--network", "none", "--read-only", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges", "--user", "1000:1000", "--pids-limit", str(limits.processes + 2),
            "--memory", f"{limits.memory_mb + 2 * limits.disk_mb + 64}m", "--ipc", "private",
            "--shm-size", f"{min(16, limits.disk_mb)}m", "--tmpfs", f"/tmp:{disk}", "--tmpfs", f"{HOME}:{disk}",
            "--workdir", HOME, "--entrypoint", "python3", image]


class Sandbox:
    """One episode's. Made at its first call; `close` ends it with all that is in it. Calls run one at a time.

    Raises FatalEnvironmentError where none can be made, EnvironmentFault where it dies."""

    def __init__(self, limits: Limits = Limits(), engine: str = "bwrap", image: str = "") -> None:
        if engine != "bwrap" and not image:
            raise FatalEnvironmentError(f"the container engine {engine} needs an image; mend: name one with python3 and bash")
        self.limits, self._engine, self._image = limits, engine, image
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def call(self, name: str, arguments: dict[str, Any]) -> Result:
        """The tool `name` of TOOLS. A mistake of the agent's is an answer (`is_error`), never an exception."""
        if name not in _NAMES:
            return Result(f"error: unknown tool '{name}'", code=1)
        if name == "Bash" and (not isinstance(arguments.get("command"), str) or "\0" in arguments["command"]):
            return Result("error: bad arguments: command must be a text", code=1)
        if len(json.dumps(arguments)) > self.limits.file_mb << 20 or (name == "Bash" and len(arguments["command"]) > 100_000):
            return Result("error: the arguments are too long", code=1)
        timeout = arguments.get("timeout")
        seconds = timeout / 1000 if isinstance(timeout, (int, float)) and timeout > 0 else None
        return await self._ask({"tool": name, "args": arguments, "timeout_s": seconds})

    async def put(self, path: str, data: bytes) -> None:
        """Writes a fixture. Raises EnvironmentFault where it does not fit."""
        done = await self._ask({"tool": "put", "args": {"path": path, "data": base64.b64encode(data).decode()}})
        if done.is_error:
            raise EnvironmentFault(f"the fixture {path} cannot be put into the sandbox: {done.text()}")

    async def get(self, path: str) -> bytes | None:
        """A file as it is now; None where there is none that can be read."""
        done = await self._ask({"tool": "get", "args": {"path": path}})
        return None if done.is_error else base64.b64decode(done.output)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()          # bwrap's process 1 dies with it, and all that is under it
        await process.communicate()

    async def _ask(self, request: dict[str, Any]) -> Result:
        async with self._turn:
            if self._process is None:
                await self._start()
            data = json.dumps(request).encode()
            return Result(**await self._exchange(struct.pack(">I", len(data)) + data))

    async def _exchange(self, data: bytes) -> dict[str, Any]:
        process = self._process
        try:
            async with asyncio.timeout(self.limits.wall_s + _GRACE_S):
                process.stdin.write(data)
                await process.stdin.drain()
                (length,) = struct.unpack(">I", await process.stdout.readexactly(4))
                return json.loads(await process.stdout.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as fault:
            await self._died(fault)
            raise AssertionError from None      # _died raises

    async def _died(self, fault: Exception) -> None:
        process = self._process
        if process.returncode is None:
            process.kill()
        said = " ".join((await process.stderr.read()).decode("utf-8", "replace").split())[-300:]
        await self.close()
        raise EnvironmentFault(f"the sandbox died or hung ({type(fault).__name__}; {said or 'it said nothing'})") from fault

    async def _start(self) -> None:
        if reason := refusal(self._engine):
            raise FatalEnvironmentError(reason)
        source = _INSIDE.read_bytes()
        inside = ["-I", "-c", _BOOT, self.limits.inside(), str(len(source))]
        pipes = {k: asyncio.subprocess.PIPE for k in ("stdin", "stdout", "stderr")}
        if self._engine != "bwrap":
            argv = container_argv(self._engine, self._image, self.limits) + inside
            self._process = await asyncio.create_subprocess_exec(*argv, **pipes)
        else:
            filter_fd, sink = os.pipe()
            os.write(sink, seccomp.program(seccomp.machine()))
            os.close(sink)
            try:
                argv = bwrap_argv(self.limits, filter_fd) + [python(), *inside]
                self._process = await asyncio.create_subprocess_exec(*argv, pass_fds=[filter_fd], **pipes, **_as_nobody())
            finally:
                os.close(filter_fd)
        await self._exchange(source)       # its first message says that it is up
