"""Files that prismm keeps between runs, in folders that no other user can write to.

What is loaded from there runs as the user's own code. So a folder counts only where it and every folder above it belong
to the user or to root, and nobody else may write to them; above it, /tmp's sticky bit is enough, by which others cannot
move what is not theirs. A file counts by the same rule, links not at all. Otherwise `folder` gives a private one under
the system's temporary folder, and says so once on stderr. On Windows, where the user's folders are closed to others by
default, nothing of this is looked at.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from prismm.errors import FileError

_REMEDY = "set PRISMM_CACHE_DIR to a folder that you alone can write to"
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@functools.cache
def tell(text: str) -> None:
    """One line on stderr, once a process; no error where stderr is closed or full."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"prismm: {text}", file=sys.stderr, flush=True)


_LISTENERS: list[Callable[[str], None]] = []


def announce(text: str, always: bool = False) -> None:
    """Say what a call waits for: to the innermost listener of `announced_to`, otherwise on stderr. There a text is said
    once a process, or each time with `always`.
    """
    if _LISTENERS:
        _LISTENERS[-1](text)
    elif always:
        tell.__wrapped__(text)
    else:
        tell(text)


@contextlib.contextmanager
def announced_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Inside, announcements go to the listener instead of stderr."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


def folder(name: str, make: bool = True) -> Path | None:
    """The folder of this name in ``PRISMM_CACHE_DIR``, else in the user's cache folder, else in a temporary one.

    It may be one that can only be read. make: whether it is made where it is missing. None where there is none.
    """
    reason = ""
    for choose, mode in ((_asked_or_home, 0o755), (_temporary, 0o700)):
        try:
            found = _checked(choose() / name, mode if make else None)
        except OSError as error:
            if make or error.errno != errno.ENOENT:
                reason = reason or _text(error)
            continue
        if reason:
            tell(f"warning: cache files are kept in {found.parent}: {reason}; {_REMEDY}")
        return found
    if reason:
        tell(f"warning: no cache files are used: {reason}; {_REMEDY}")
    return None


def read(path: Path) -> bytes:
    """The bytes of a file in such a folder.

    Raises:
        FileError: where another user may have written it, or it is no plain file. OSError: where it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | _PLAIN | getattr(os, "O_NONBLOCK", 0))
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise FileError(f"{path} is not a plain file")
        _check_owner(path, found)
        with open(handle, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(handle)


def write(path: Path, content: bytes) -> None:
    """Write a file in such a folder, under a temporary name and renamed once whole: nobody reads a part of it.

    Raises:
        OSError: where that fails; what was there before stays.
    """
    _check_size(path, len(content))
    new = path.with_name(f"{path.name}.{os.urandom(8).hex()}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o644)
    try:
        with open(handle, "wb", buffering=0) as stream:
            rest = memoryview(content)
            while rest:
                rest = rest[stream.write(rest) :]
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def _asked_or_home() -> Path:
    """``PRISMM_CACHE_DIR``, else prismm's folder among the user's caches."""
    if asked := os.environ.get("PRISMM_CACHE_DIR"):
        found = os.path.expanduser(asked)
        if found.startswith("~"):
            raise FileError(errno.ENOENT, f"PRISMM_CACHE_DIR={asked!r}: there is no such home folder")
        return Path(found)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or tempfile.gettempdir()) / "prismm" / "cache"
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))  # which counts where it is absolute
    if not caches.is_absolute():
        caches = Path(os.path.expanduser("~/.cache"))
    if not caches.is_absolute():
        raise FileError(errno.ENOENT, "this user has no home folder")
    return caches / "prismm"


def _temporary() -> Path:
    """A folder of the user's own, the same in every run."""
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    return Path(tempfile.gettempdir()) / f"prismm-{user}"


def _checked(path: Path, mode: int | None) -> Path:
    """The folder without links, after a look at all that leads to it; missing ones are made with this mode.

    Raises:
        FileError: where another user could write there. OSError: where it is missing and cannot be made.
    """
    path = path.absolute()
    _check_links(path)
    real = Path(os.path.realpath(path))
    for part in (*reversed(real.parents), real):
        try:
            found = part.lstat()
        except FileNotFoundError:
            if mode is None:
                raise
            with contextlib.suppress(FileExistsError):  # made by another process meanwhile
                part.mkdir(mode)
            found = part.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise FileError(f"{part} is not a folder")
        _check_owner(part, found, above=part != real)
    return real


def _check_links(path: Path) -> None:
    """Refuse a link of somebody else on the way to a folder, or on the way that another link takes."""
    waiting, seen = [path], set[Path]()
    while waiting:
        path = waiting.pop()
        for part in (*reversed(path.parents), path):
            link = Path(os.path.realpath(part.parent)) / part.name
            if link.is_symlink() and link not in seen:
                seen.add(link)
                _check_owner(link, link.lstat(), above=True)
                waiting.append(link.parent / link.readlink())


def _check_owner(path: Path, found: os.stat_result, above: bool = False) -> None:
    """Refuse what another user may have written. above: a folder, of which it matters only who may move what is in it.

    Whoever owns / counts as root there: in a user namespace without root that is the number of all unknown users.
    """
    if not hasattr(os, "geteuid"):
        return
    trusted = {0, os.geteuid(), *([os.stat("/").st_uid] if above else [])}
    if found.st_uid not in trusted:
        raise FileError(f"{path} belongs to another user (uid {found.st_uid})")
    if stat.S_ISLNK(found.st_mode) or (above and found.st_mode & stat.S_ISVTX):
        return
    by_group = found.st_mode & stat.S_IWGRP and (_has_list(path) or not _is_private(found.st_gid))
    if by_group or found.st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(found.st_mode)
        raise FileError(f"other users can write to {path} (mode {mode:o}; chmod go-w takes that away)")


def _text(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _has_list(path: Path) -> bool:
    """Whether an access control list names more users and groups, whose rights the group's bits then stand for."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (AttributeError, OSError):  # neither here, or not on this disk
        return False


def _is_private(group: int) -> bool:
    """Whether a group is this user's own: many systems give each one a group of the same name, and let it write."""
    import grp
    import pwd

    try:
        user, members = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return (members.gr_gid, members.gr_name) == (user.pw_gid, user.pw_name) and set(members.gr_mem) <= {user.pw_name}


def _check_size(path: Path, size: int) -> None:
    """Refuse ahead what is above the process's limit: writing it would raise SIGXFSZ, which may end the process."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and size > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
