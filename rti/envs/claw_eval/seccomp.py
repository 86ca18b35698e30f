"""System calls that no command in a sandbox needs and that would get around its limits: a program for the kernel's filter.

Keeps: memory that belongs to no process and to no file system of the sandbox (memfd, System V segments) cannot be made, nor can
anything be mounted, traced, or given another namespace. Namespaces hide the host; this narrows the kernel that is left.
"""

from __future__ import annotations

import platform
import struct

# Numbers from Linux's syscall tables: (audit architecture, {call: number}).
_COMMON = {"fsopen": 430, "fsconfig": 431, "fsmount": 432, "open_tree": 428, "move_mount": 429, "mount_setattr": 442,
           "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "memfd_secret": 447, "pidfd_getfd": 438}
_TABLES = {
    "x86_64": (0xC000003E, {
        "memfd_create": 319, "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240, "userfaultfd": 323, "bpf": 321,
        "perf_event_open": 298, "add_key": 248, "request_key": 249, "keyctl": 250, "ptrace": 101, "process_vm_readv": 310,
        "process_vm_writev": 311, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272,
        "setns": 308}),
    "aarch64": (0xC00000B7, {
        "memfd_create": 279, "shmget": 194, "msgget": 186, "semget": 190, "mq_open": 180, "userfaultfd": 282, "bpf": 280,
        "perf_event_open": 241, "add_key": 217, "request_key": 218, "keyctl": 219, "ptrace": 117, "process_vm_readv": 270,
        "process_vm_writev": 271, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268}),
}

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06      # BPF: ld [k]; jeq k; jge k; ret k
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050001
_X32 = 0x40000000       # x86_64's second set of numbers, under which the first could be called by another name


def machine() -> str:
    """The machine's architecture where there is a table for it, else "" (then no sandbox is made)."""
    return platform.machine() if platform.machine() in _TABLES else ""


def program(architecture: str) -> bytes:
    """The filter as an array of struct sock_filter: the calls above fail with EPERM, all others are allowed; a call in another
    architecture's numbers kills its process."""
    audit, numbers = _TABLES[architecture]
    refused = sorted({**_COMMON, **numbers}.values())
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    lines.append((_AT_LEAST, len(refused) + 1, 0, _X32))
    lines += [(_EQUAL, len(refused) - i, 0, number) for i, number in enumerate(refused)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
