"""Process 1 of a sandbox: takes one call at a time on stdin, runs it in a child under limits, answers on stdout.

Keeps: after each call nothing but this process is alive; when stdin ends (the worker closed the sandbox, or died) it ends, and
with it the sandbox. File tools run in the child too, so their paths, links and patterns reach only what a command could reach,
under the same limits. Its text is handed to the sandbox's own python3 (3.9 or later): standard library only, nothing of rti.
A message is four bytes of length (big endian) and JSON.
"""

import base64
import ctypes
import fnmatch
import glob
import json
import os
import re
import resource
import select
import signal
import stat
import struct
import sys
import time

HOME = "/workspace"
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}
TICK_S = 0.05
WRITABLE = (HOME, "/tmp", "/dev/shm")
_DUMPABLE = 4       # prctl: whether others of the same user may look into a process and its descriptors
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Refused(Exception):
    """The agent's own mistake, said to it."""


# --- file tools (in the child) -----------------------------------------------------------------------------------
def resolve(path):
    """The real path of what an agent named; it must lie in the workspace also after all links are followed."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise Refused("a path must be a text that is not empty")
    real = os.path.realpath(os.path.join(HOME, path))
    if real != HOME and not real.startswith(HOME + "/"):
        raise Refused("%s lies outside %s" % (path, HOME))
    return real


def content(path, most):
    """Bytes of a regular file of the workspace, at most `most`. No pipes and devices: reading them may not end."""
    try:
        handle = os.open(resolve(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as fault:
        raise Refused("%s: %s" % (path, fault.strerror))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Refused("%s is not a regular file" % path)
        return file.read(most)


def store(path, data):
    real = resolve(path)
    if os.path.exists(real) and not os.path.isfile(real):
        raise Refused("%s is not a regular file" % path)
    try:
        os.makedirs(os.path.dirname(real), exist_ok=True)
        with open(real, "wb") as file:
            file.write(data)
    except OSError as fault:
        raise Refused("%s: %s" % (path, fault.strerror))


def read(args, limits):
    text = content(args["file_path"], limits["file_bytes"]).decode("utf-8", "replace")
    first = max(1, int(args.get("offset") or 1))
    count = int(args.get("limit") or 0)
    lines = text.splitlines(True)[first - 1:]
    return "".join(lines[:count] if count > 0 else lines)


def write(args, limits):
    data = args["content"].encode("utf-8", "replace")
    store(args["file_path"], data)
    return "wrote %d bytes to %s" % (len(data), args["file_path"])


def edit(args, limits):
    path, old, new = args["file_path"], args["old_string"], args["new_string"]
    text = content(path, limits["file_bytes"]).decode("utf-8", "surrogateescape")
    found = text.count(old) if old else 0
    if not found:
        raise Refused("old_string is not in %s" % path)
    if found > 1 and not args.get("replace_all"):
        raise Refused("old_string is in %s %d times; make it longer, or set replace_all" % (path, found))
    store(path, text.replace(old, new).encode("utf-8", "surrogateescape"))
    return "replaced %d in %s" % (found, path)


def below(path):
    """Regular files below a folder of the workspace (or the file itself), links not followed, in order."""
    top = resolve(path or HOME)
    if os.path.isfile(top):
        yield top
        return
    for folder, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            full = os.path.join(folder, name)
            if os.path.isfile(full) and not os.path.islink(full):
                yield full


def find(args, limits):
    pattern = args["pattern"]
    top = resolve(args.get("path") or HOME)
    found = glob.glob(os.path.join(top, pattern), recursive=True)
    inside = sorted(p for p in found if os.path.realpath(p).startswith(HOME + "/"))
    return "\n".join(inside) or "no file matches %s" % pattern


def grep(args, limits):
    flags = (re.IGNORECASE if args.get("case_insensitive") else 0) | (re.DOTALL if args.get("multiline") else 0)
    try:
        pattern = re.compile(args["pattern"], flags)
    except re.error as fault:
        raise Refused("not a regular expression: %s" % fault)
    mode, around = args.get("output_mode") or "files_with_matches", int(args.get("context_lines") or 0)
    out = []
    for path in below(args.get("path")):
        if args.get("glob") and not fnmatch.fnmatch(os.path.basename(path), args["glob"]):
            continue
        text = content(path, limits["file_bytes"]).decode("utf-8", "replace")
        if args.get("multiline"):
            out += [path] if pattern.search(text) else []
            continue
        lines = text.splitlines()
        hits = [i for i, line in enumerate(lines) if pattern.search(line)]
        if hits and mode == "files_with_matches":
            out.append(path)
        elif hits and mode == "count":
            out.append("%s:%d" % (path, len(hits)))
        elif hits:
            shown = sorted({i for h in hits for i in range(max(0, h - around), min(len(lines), h + around + 1))})
            out += ["%s:%d:%s" % (path, i + 1, lines[i]) for i in shown]
    most = int(args.get("head_limit") or 0)
    return "\n".join(out[:most] if most > 0 else out) or "no match"


def put(args, limits):
    store(args["path"], base64.b64decode(args["data"]))
    return ""


def get(args, limits):
    return base64.b64encode(content(args["path"], limits["file_bytes"])).decode("ascii")


TOOLS = {"Read": read, "Write": write, "Edit": edit, "Glob": find, "Grep": grep, "put": put, "get": get}


# --- the child ---------------------------------------------------------------------------------------------------
def bound(limits):
    """This process's own limits, which its descendants inherit. Those over all together are the parent's (`watch`)."""
    for name, value in (("RLIMIT_CORE", 0), ("RLIMIT_CPU", int(limits["cpu_s"]) + 1), ("RLIMIT_FSIZE", limits["file_bytes"]),
                        ("RLIMIT_DATA", limits["memory_bytes"]), ("RLIMIT_NOFILE", 256), ("RLIMIT_NPROC", limits["processes"]),
                        ("RLIMIT_STACK", min(8 << 20, limits["memory_bytes"]))):
        resource.setrlimit(getattr(resource, name), (value, value))
    for name in ("SIGPIPE", "SIGXFSZ"):         # which Python ignores, and commands would inherit that
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.nice(10)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def child(call, out, limits):
    """Never returns."""
    ctypes.CDLL(None).prctl(_DUMPABLE, 1, 0, 0, 0)
    os.setsid()
    for target, source in ((0, os.open("/dev/null", os.O_RDONLY)), (1, out), (2, out)):
        os.dup2(source, target)
    os.chdir(HOME)
    bound(limits)
    tool, args = call["tool"], call["args"]
    if tool == "Bash":
        os.execve("/bin/bash", ["bash", "-c", args["command"]], ENVIRONMENT)
    try:
        text, code = TOOLS[tool](args, limits), 0
    except Refused as fault:
        text, code = "error: %s" % fault, 1
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        text, code = "error: bad arguments (%s: %s)" % (type(fault).__name__, fault), 1
    except MemoryError:
        text, code = "error: the memory limit is reached", 1
    with os.fdopen(1, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))
    os._exit(code)


# --- the parent --------------------------------------------------------------------------------------------------
def others():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def usage(pids):
    """(bytes of memory, seconds of CPU) of processes that may vanish meanwhile."""
    memory, cpu = 0, 0.0
    for pid in pids:
        try:
            with open("/proc/%d/status" % pid) as file:
                memory += sum(int(line.split()[1]) << 10 for line in file if line.startswith(("RssAnon:", "RssShmem:")))
            with open("/proc/%d/stat" % pid) as file:
                cpu += sum(int(f) for f in file.read().rpartition(")")[2].split()[11:15]) / _TICKS_PER_S
        except (FileNotFoundError, ProcessLookupError):
            continue
    return memory, cpu


def files():
    """Names in use on the writable file systems: each costs the host memory that no size limit counts."""
    systems = [os.statvfs(path) for path in WRITABLE]
    return sum(s.f_files - s.f_ffree for s in systems)


def reaped_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def watch(limits, cpu_before, files_before):
    """Which limit over all processes together is passed, "" for none."""
    pids = others()
    memory, cpu = usage(pids)
    if len(pids) > limits["processes"]:
        return "processes"
    if memory > limits["memory_bytes"]:
        return "memory"
    if cpu + reaped_cpu() - cpu_before > limits["cpu_s"]:
        return "cpu"
    now = files()
    return "files" if now > limits["files"] and now > files_before else ""


def sweep():
    """Ends all others. Signals until none is left, since a process may be born between two signals."""
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def run(call, limits):
    """{code, ended, output, left_out}: `ended` is exit, or the limit that ended it."""
    seconds = min(float(call.get("timeout_s") or limits["wall_s"]), limits["wall_s"])
    end, cpu_before, files_before = time.monotonic() + seconds, reaped_cpu(), files()
    source, sink = os.pipe()
    main = os.fork()
    if main == 0:
        child(call, sink, limits)
    os.close(sink)
    most = limits["output_bytes"] if call["tool"] != "get" else 2 * limits["file_bytes"]
    kept, left_out, ended, code, open_, checked = bytearray(), 0, "", None, True, time.monotonic()

    def take():
        """Keep of the output what there is room for. False at its end."""
        nonlocal left_out
        data = os.read(source, 65536)
        room = max(0, most - len(kept))
        kept.extend(data[:room])
        left_out += len(data[room:])
        return bool(data)

    while code is None and not ended:
        ready, _, _ = select.select([0] + [source] * open_, [], [], TICK_S if open_ else 0.002)
        if 0 in ready:      # no call is sent while one runs: this is the end of stdin
            os._exit(0)
        if source in ready:
            open_ = take()
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == main:
            code = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > end:
            ended = "time"
        elif time.monotonic() - checked > TICK_S:
            ended, checked = watch(limits, cpu_before, files_before), time.monotonic()
    sweep()
    while open_:            # what was still in the pipe
        open_ = take()
    os.close(source)
    if code in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        ended = "cpu"
    return {"code": -9 if code is None else code, "ended": ended or "exit", "left_out": left_out,
            "output": bytes(kept).decode("utf-8", "replace")}


def exactly(count):
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def answer(value):
    data = json.dumps(value).encode()
    data = struct.pack(">I", len(data)) + data
    while data:
        data = data[os.write(1, data):]


def main():
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)     # the children are of the same user: they may not reach our pipes
    limits = json.loads(sys.argv[1])
    answer({"ready": os.getpid()})
    while True:
        answer(run(json.loads(exactly(struct.unpack(">I", exactly(4))[0])), limits))


if __name__ == "__main__":
    main()
