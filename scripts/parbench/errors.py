"""Errors that a user, a file or the machine causes: each is a sentence with a fix."""

from __future__ import annotations

import errno
import os

# What a user can do about an error of the operating system, by its number.
REMEDIES = {
    errno.EACCES: "choose a file or folder that you may read and write, or ask its owner",
    errno.EPERM: "choose a file or folder of your own, or ask its owner",
    errno.EROFS: "this disk is read-only: work in a folder elsewhere; PARBENCH_CACHE and TMPDIR "
    "name the folders of the cache and for temporary files",
    errno.ENOSPC: "free some space, or work on a larger disk; PARBENCH_CACHE and TMPDIR name the "
    "folders of the cache and for temporary files",
    errno.EDQUOT: "your quota is used up: delete files, or work on another disk; PARBENCH_CACHE "
    "and TMPDIR name the folders of the cache and for temporary files",
    errno.ENOENT: "check the name; a folder must exist before a file is written into it",
    errno.ENOTDIR: "a part of this path is a file and must be a folder: check it, or HOME",
    errno.EISDIR: "this is a folder and must be a file: move it away, or choose another name",
    errno.EEXIST: "move it away, or choose another name",
    errno.ENOTEMPTY: "move its files away, or choose another name",
    errno.ELOOP: "links that lead to each other: delete one of them",
    errno.ENAMETOOLONG: "choose a shorter name, or a folder with a shorter path",
    errno.EINVAL: "check the name",
    errno.EXDEV: "both must be on the same disk",
    errno.ETXTBSY: "wait until the program that is using it has ended",
    errno.EFBIG: "this disk or the limit `ulimit -f` allows no larger file",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.ENFILE: "the machine has no open files left: end other programs, or ask its operators",
    errno.ENOMEM: "free some memory, or use a machine that has more",
    errno.EAGAIN: "no more processes or threads are allowed here: see `ulimit -u`",
    errno.EIO: "the disk does not answer as it should: see `dmesg`, or work on another one",
    errno.ESTALE: "the network disk has lost this file: run the command again",
    errno.ENOEXEC: "this program is for another machine: install the one for this system",
    errno.EADDRINUSE: "another program uses this port: end it, or choose another one",
    **dict.fromkeys(
        (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
        "this disk does not support locks or another needed operation: work on a local disk; "
        "PARBENCH_CACHE names the folder of the cache",
    ),
}


class ParbenchError(Exception):
    """A failure that a user can cause.

    The message names the file, the key or cell, the value, and the fix.
    """


def sentence(error: OSError) -> str:
    """Return an error of the operating system as a sentence with its file and a fix."""
    names = (error.filename, error.filename2)
    files = " and ".join(os.fsdecode(name) for name in names if isinstance(name, (str, bytes)))
    reason = error.strerror or str(error) or type(error).__name__
    remedy = REMEDIES.get(error.errno or 0, "the operating system reports this")
    if error.errno == errno.EEXIST and os.path.islink(files) and not os.path.exists(files):
        reason = f"a link to {os.readlink(files)}, which does not exist"
        remedy = "make that folder, mount its disk, or delete the link"
    return f"{files}: {reason}; {remedy}" if files else f"{reason}; {remedy}"
