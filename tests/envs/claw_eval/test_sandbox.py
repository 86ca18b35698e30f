"""The sandbox of commands and file tools: what agents may do works, what would break out does not.

Real bubblewrap; where there is none these are skipped with the reason that the code gives, but for path logic and refusals.
"""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rti.envs.base import FatalEnvironmentError
from rti.envs.claw_eval import sandbox, sandbox_inside, seccomp
from rti.envs.claw_eval.sandbox import Limits, Sandbox

bwrap = pytest.mark.skipif(bool(sandbox.refusal()), reason=sandbox.refusal() or "-")
LIMITS = Limits(wall_s=10, cpu_s=5, memory_mb=128, processes=24, file_mb=4, disk_mb=16, files=500, output_chars=2000)


def within(*steps, limits=LIMITS):
    """The results of calls (a text is a Bash command, a pair a tool and its arguments) in one sandbox."""
    async def go():
        box = Sandbox(limits)
        try:
            return [await box.call(*(("Bash", {"command": s}) if isinstance(s, str) else s)) for s in steps]
        finally:
            await box.close()
    return asyncio.run(go())


def run(command, limits=LIMITS):
    return within(command, limits=limits)[0]


def python(source):
    """A command that runs Python."""
    return "python3 - <<'END'\n" + textwrap.dedent(source) + "\nEND"


# --- what works --------------------------------------------------------------------------------------------------
@bwrap
def test_files_live_as_long_as_the_episode_and_tools_see_the_same_ones():
    results = within("mkdir d && echo alpha > d/a.txt && pwd", ("Read", {"file_path": "/workspace/d/a.txt"}),
                     ("Write", {"file_path": "d/b.txt", "content": "one\ntwo\nthree\n"}),
                     ("Edit", {"file_path": "d/b.txt", "old_string": "two", "new_string": "2"}), "cat d/b.txt",
                     ("Glob", {"pattern": "**/*.txt"}), ("Grep", {"pattern": "^t", "output_mode": "content"}),
                     ("Read", {"file_path": "d/b.txt", "offset": 2, "limit": 1}))
    assert [r.is_error for r in results] == [False] * 8
    assert results[0].output == "/workspace\n" and results[1].output == "alpha\n" and results[4].output == "one\n2\nthree\n"
    assert results[5].output.split() == ["/workspace/d/a.txt", "/workspace/d/b.txt"]
    assert results[6].output == "/workspace/d/b.txt:3:three" and results[7].output == "2\n"


@bwrap
def test_two_sandboxes_share_nothing():
    async def go():
        one, two = Sandbox(LIMITS), Sandbox(LIMITS)
        try:
            await one.put("x", b"1")
            return await one.get("x"), await two.get("x"), (await two.call("Bash", {"command": "ls"})).text()
        finally:
            await asyncio.gather(one.close(), two.close())
    assert asyncio.run(go()) == (b"1", None, "[no output]")


@bwrap
def test_mistakes_are_answers():
    results = within("exit 3", ("Read", {"file_path": "none"}),
                     ("Edit", {"file_path": "none", "old_string": "a", "new_string": ""}), ("Grep", {"pattern": "("}),
                     ("Read", {}), ("Nope", {}), ("Bash", {"command": 3}), ("Bash", {"command": "a\0b"}),
                     ("Write", {"file_path": "x\0y", "content": ""}), "echo still here")
    assert [r.is_error for r in results] == [True] * 9 + [False]
    assert results[0].text() == "[exit code 3]" and "outside" not in results[1].output


# --- breaking out ------------------------------------------------------------------------------------------------
@bwrap
@pytest.mark.parametrize("command", [
    "cat /etc/shadow", "cat /etc/passwd", "ls /root /home", "cat /proc/1/environ", "ls /proc/1/fd/", "cat /proc/1/mem",
    "echo x > /proc/1/fd/1", "touch /usr/x", "touch /x", "touch /dev/x", "echo 1 > /proc/sys/vm/overcommit_memory",
    "unshare -Ur true", "mount -t tmpfs none /tmp", "chroot / true", "nsenter -t 1 -a true", "cat /dev/mem", "ls /sys/kernel"])
def test_the_host_is_out_of_reach(command):
    assert run(command).code != 0


@bwrap
def test_the_workers_environment_and_processes_are_not_seen(monkeypatch):
    monkeypatch.setenv("RTI_SECRET", "correct-horse")
    seen = run("env; cat /proc/*/environ 2>/dev/null; cat /proc/*/cmdline; echo; ls -d /proc/[0-9]* | wc -l")
    assert "correct-horse" not in seen.output and "pytest" not in seen.output
    assert int(seen.output.split()[-1]) < 8


@bwrap
def test_there_is_no_network(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = python(f"""
            import socket
            for address in (("127.0.0.1", {port}), ("8.8.8.8", 53)):
                try:
                    socket.create_connection(address, timeout=2)
                    print("CONNECTED")
                except OSError as fault:
                    print(fault)
            print(open("/proc/net/dev").read())""")
        seen = run(command).output
    assert "CONNECTED" not in seen and "lo:" in seen and "eth" not in seen


@bwrap
def test_a_fork_bomb_ends_with_the_call():
    results = within(":(){ :|:& };: ; sleep 30", "echo alive; ls /proc | grep -c '^[0-9]'",
                     limits=Limits(wall_s=2, processes=24))
    assert results[0].code != 0 and results[1].output.split()[0] == "alive" and int(results[1].output.split()[1]) < 6


@bwrap
def test_nothing_runs_on_after_a_call_not_even_a_daemon():
    started = "setsid nohup sh -c 'sleep 1; touch later; sleep 600' >/dev/null 2>&1 & sleep 0.1; echo started"
    results = within(started, "sleep 1.5; ls; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert results[0].output == "started\n" and "later" not in results[1].output and "600" not in results[1].output


@bwrap
@pytest.mark.parametrize(("command", "most_mb"), [
    ("dd if=/dev/zero of=a bs=1M count=64", 4), ("for i in $(seq 20); do head -c 3M /dev/zero > f$i; done", 16),
    ("for i in $(seq 20); do head -c 3M /dev/zero > /tmp/f$i; done", 16),
    ("for i in $(seq 20); do head -c 3M /dev/zero > /dev/shm/f$i; done", 16)])
def test_the_disk_cannot_be_filled(command, most_mb):
    used = within(command, "df --output=used -k /workspace /tmp /dev/shm | tail -n 3")[1].output.split()
    assert max(int(k) for k in used) <= most_mb << 10


@bwrap
def test_the_limits_of_all_processes_together_hold():
    many = python("""
        import os, time
        for i in range(8):
            if os.fork() == 0:
                block = bytearray(b"x" * (40 << 20))
                time.sleep(20)
        time.sleep(20)""")
    spin = "for i in 1 2 3 4; do (while :; do :; done) & done; wait"
    names = python("for i in range(100000): open(f'/workspace/{i}', 'w').close()")
    ends = [r.ended for r in within(many, names, "rm -rf /workspace/*", spin, limits=Limits(
        wall_s=60, cpu_s=1, memory_mb=128, processes=24, disk_mb=16, files=500))]
    assert ends == ["memory", "files", "exit", "cpu"]


@bwrap
def test_one_process_cannot_take_more_memory_and_hidden_memory_is_refused():
    grab = run(python("x = bytearray(400 << 20)"))
    hidden = run(python("import os; os.memfd_create('x')"))
    segment = run(python("import ctypes; print(ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600))"))
    assert "MemoryError" in grab.output and "PermissionError" in hidden.output and segment.output == "-1\n"


@bwrap
def test_time_and_output_are_limited():
    results = within("echo before; sleep 60", ("Bash", {"command": "sleep 60", "timeout": 200}), "yes", "yes | head -c 5000",
                     limits=Limits(wall_s=1, cpu_s=1, output_chars=2000))
    assert results[0].ended == "time" and results[0].output == "before\n" and results[1].ended == "time"
    assert results[2].ended in ("time", "cpu") and len(results[2].output) == 2000
    assert results[3].ended == "exit" and results[3].left_out == 3000 and "3000 more bytes" in results[3].text()


@bwrap
def test_links_and_odd_paths_lead_nowhere():
    prepare = "ln -s /etc e; ln -s / root; ln -s /proc/1/environ p; mkfifo pipe; ln -s loop loop; ln -s /usr/bin/env exe"
    wanted = ["e/alternatives/awk", "p", "root/usr/bin/env", "exe", "pipe", "loop", "/dev/zero", "/proc/self/environ",
              "../etc/x", "/workspace/../usr/bin/env", "/workspacex/y", "/proc/self/root/usr/bin/env"]
    results = within(prepare, *(("Read", {"file_path": p}) for p in wanted),
                     ("Write", {"file_path": "root/tmp/x", "content": "1"}),
                     ("Write", {"file_path": "pipe", "content": "1"}), ("Glob", {"pattern": "root/usr/bin/en*"}),
                     ("Grep", {"pattern": "a", "path": "e"}))
    assert [r.output for r in results[1:-2] if not r.output.startswith("error: ")] == []
    assert results[-2].output.startswith("no file matches") and results[-1].is_error


@bwrap
def test_a_pattern_that_never_ends_is_ended():
    results = within(("Write", {"file_path": "a", "content": "a" * 40 + "!"}), ("Grep", {"pattern": "(a+)+$"}), "echo alive",
                     limits=Limits(wall_s=1))
    assert results[1].ended == "time" and results[2].output == "alive\n"


@bwrap
def test_no_answer_can_be_forged():
    forged = run(python("""
        import os, glob
        for fd in range(3, 64):
            try:
                os.write(fd, b"\\0\\0\\0\\x02{}")
                print("WROTE", fd)
            except OSError:
                pass
        for path in glob.glob("/proc/1/fd/*"):
            print("SAW", path)
        os.kill(1, 9)
        print("not killed")"""))
    assert forged.output == "not killed\n" and forged.code == 0


@bwrap
def test_nothing_outlives_a_worker_that_is_killed():
    source = """
        import asyncio
        from rti.envs.claw_eval.sandbox import Limits, Sandbox
        async def main():
            box = Sandbox(Limits(wall_s=300))
            await box.call("Bash", {"command": "true"})
            print(box._process.pid, flush=True)
            await box.call("Bash", {"command": "sleep 299.125"})
        asyncio.run(main())"""
    worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, text=True)
    outer = int(worker.stdout.readline())
    sleeping = _wait(lambda: [p for p in _cmdlines() if _cmdlines().get(p) == "sleep 299.125"])
    assert sleeping, "the command never started"
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    assert _wait(lambda: not {outer, *sleeping} & set(_cmdlines())), "left over: the sandbox of a killed worker"


def _cmdlines():
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found[int(path.parent.name)] = path.read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
    return {p: line for p, line in found.items() if line}


def _wait(condition, tries=200):
    for _ in range(tries):
        if found := condition():
            return found
        time.sleep(0.05)
    return condition()


# --- without bubblewrap ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["", None, 3, "a\0b", "/etc/passwd", "../x", "/workspace/../etc", "/workspacex", "a/../../b"])
def test_a_path_outside_the_workspace_is_refused(path):
    with pytest.raises(sandbox_inside.Refused):
        sandbox_inside.resolve(path)


@pytest.mark.parametrize("path", ["a", "./a", "/workspace/a", "b/../a", "/workspace//a"])
def test_a_path_in_the_workspace_is_resolved(path):
    assert sandbox_inside.resolve(path) == "/workspace/a"


def test_links_are_followed_before_a_path_is_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox_inside, "HOME", str(tmp_path))
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "in").symlink_to(tmp_path / "file")
    with pytest.raises(sandbox_inside.Refused, match="outside"):
        sandbox_inside.resolve("out/passwd")
    assert sandbox_inside.resolve("in") == str(tmp_path / "file")


def test_without_bubblewrap_commands_are_refused_with_the_mend(monkeypatch):
    monkeypatch.setenv("PATH", "")
    sandbox.refusal.cache_clear()
    try:
        with pytest.raises(FatalEnvironmentError, match="no bubblewrap.*apt-get install bubblewrap.*container engine"):
            asyncio.run(Sandbox().call("Bash", {"command": "true"}))
        assert "no podman" in sandbox.refusal("podman")
    finally:
        monkeypatch.undo()
        sandbox.refusal.cache_clear()


def test_a_container_engine_gets_the_same_limits():
    argv = sandbox.container_argv("podman", "python:3.12", Limits(memory_mb=100, disk_mb=10, processes=7, files=99))
    text = " ".join(argv)
    for part in ("--network none", "--read-only", "--cap-drop ALL", "no-new-privileges", "--user 1000:1000", "--pids-limit 9",
                 "--memory 184m", "/workspace:size=10m,nr_inodes=99", "--rm"):
        assert part in text
    with pytest.raises(FatalEnvironmentError, match="image"):
        Sandbox(engine="podman")


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_the_filter_of_system_calls_jumps_within_itself(architecture):
    lines = list(struct.iter_unpack("=HBBI", seccomp.program(architecture)))
    returns = {i for i, line in enumerate(lines) if line[0] == 0x06}
    assert {lines[i][3] for i in returns} == {0x7FFF0000, 0x80000000, 0x00050001}
    for i, (code, yes, no, _) in enumerate(lines):
        if code in (0x15, 0x35):
            assert i + 1 + max(yes, no) < len(lines)
            if i > 3:       # every refused number ends at the last line
                assert i + 1 + yes == len(lines) - 1
