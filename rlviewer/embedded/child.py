"""Become another program: one that dies with its parent and, when root starts it, runs as an unprivileged user.

Started as a file by `python -I -S`, so it costs about 10 ms, imports nothing of ours and forks nothing.
"""

import argparse
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


class CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class CapabilityWords(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def prctl(option: int, *values: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    check(libc.prctl(option, *padded), f"prctl {option}")


def permitted_capabilities() -> int:
    words = (CapabilityWords * 2)()
    check(libc.capget(ctypes.byref(CapabilityHeader(CAPABILITY_VERSION_3, 0)), words), "capget")
    return words[0].permitted | words[1].permitted << 32


def keep_only_capability(capability: int | None) -> None:
    """Drop every capability but one; that one also passes to the program that we become."""
    bit = 0 if capability is None else 1 << capability
    words = (CapabilityWords * 2)(CapabilityWords(bit, bit, bit), CapabilityWords(0, 0, 0))
    check(libc.capset(ctypes.byref(CapabilityHeader(CAPABILITY_VERSION_3, 0)), words), "capset")
    if capability is not None:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def become(uid: int, gid: int, reach: list[str]) -> None:
    """Give root up for `uid`. Folders above `reach` that `uid` may not enter (a checkout below /root) stay as they
    are: the program then keeps the one right to pass through them, and none when it needs none.
    """
    prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    capability = None
    if not all(os.access(path, os.R_OK | os.X_OK) for path in reach):
        # Docker grants root the second but not the first, which would be enough.
        has = permitted_capabilities()
        capability = CAP_DAC_READ_SEARCH if has >> CAP_DAC_READ_SEARCH & 1 else CAP_DAC_OVERRIDE
    keep_only_capability(capability)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    parser.add_argument("--on-parent-death", default="SIGKILL", help="the signal to get when the parent dies")
    parser.add_argument("--user", help="UID:GID to become")
    parser.add_argument("--reach", action="append", default=[], help="a path the program must be able to read")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    if args.user:
        uid, gid = map(int, args.user.split(":"))
        become(uid, gid, args.reach)
    # After the change of user, which clears it.
    prctl(PR_SET_PDEATHSIG, signal.Signals[args.on_parent_death])
    if os.getppid() != args.parent:
        sys.exit("the parent died before its child started")
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execv(args.command[0], args.command)  # noqa: S606


if __name__ == "__main__":
    main()
