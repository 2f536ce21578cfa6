"""The user's cache folder: which folders and files count, what stands in for others, and files that are whole or not
there.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from prismm.core import cache_files
from prismm.errors import FileError

STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """A cache folder and a temporary folder of the test's own, and nothing told yet."""
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary").chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", None)  # which tempfile keeps from the first look at TMPDIR on
    cache_files.tell.cache_clear()
    yield
    cache_files.tell.cache_clear()


def instead(tmp_path: Path) -> Path:
    return tmp_path / "temporary" / f"prismm-{os.geteuid()}" / "kernels"


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("umask", [0, 0o022, 0o027])
def test_folders_and_files_are_the_users_own_whatever_the_umask(tmp_path, monkeypatch, capfd, umask):
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "not" / "there"))
    before = os.umask(umask)
    try:
        found = cache_files.folder("kernels")
        assert found == tmp_path / "not" / "there" / "kernels"
        cache_files.write(found / "file", b"content")
    finally:
        os.umask(before)
    assert {mode_of(x) for x in (found, found.parent, found.parent.parent)} == {0o755 & ~umask}
    assert mode_of(found / "file") == 0o644 & ~umask
    assert cache_files.read(found / "file") == b"content"
    assert [x.name for x in found.iterdir()] == ["file"]
    assert capfd.readouterr() == ("", "")


def test_the_folder_is_asked_for_or_found(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cache_files.folder("kernels") == tmp_path / "cache" / "kernels"
    monkeypatch.setenv("PRISMM_CACHE_DIR", "~/mine")
    assert cache_files.folder("kernels") == tmp_path / "home" / "mine" / "kernels"
    for here in ("here", ".", "./x/.."):
        monkeypatch.setenv("PRISMM_CACHE_DIR", here)
        assert cache_files.folder("kernels") == (tmp_path / here / "kernels").resolve()
    monkeypatch.setenv("PRISMM_CACHE_DIR", "")
    assert cache_files.folder("kernels") == tmp_path / "xdg" / "prismm" / "kernels"
    for no_place in ("", "relative", "~/relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", no_place)
        assert cache_files.folder("kernels") == tmp_path / "home" / ".cache" / "prismm" / "kernels"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("home", ["relative", "~", "."])
def test_a_home_that_is_none_is_not_made_in_the_working_directory(tmp_path, monkeypatch, capfd, home):
    """`~` stays where there is neither HOME nor an entry for the user: that is a folder of the working directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("PRISMM_CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_files.folder("kernels", make=False) is None
    assert capfd.readouterr().err == ""
    for asked in ("", "~nobody-of-this-name/cache"):
        monkeypatch.setenv("PRISMM_CACHE_DIR", asked)
        found = cache_files.folder("kernels")
        assert found == instead(tmp_path) and mode_of(found) == mode_of(found.parent) == 0o700
        assert "home folder" in capfd.readouterr().err
    assert cache_files.folder("kernels", make=False) == found
    assert list((tmp_path / "work").iterdir()) == []


def told(capfd: pytest.CaptureFixture[str], *words: object) -> None:
    """One line on stderr with these words and the remedy, nothing on stdout."""
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("prismm: warning: ") and err.count("\n") == 1, (out, err)
    assert all(str(word) in err for word in (*words, "set PRISMM_CACHE_DIR")), err


def refuse(tmp_path: Path, capfd: pytest.CaptureFixture[str], *words: object) -> None:
    """The folder is a private temporary one, in this call and the next, and that is told once."""
    for _ in range(2):
        found = cache_files.folder("kernels")
        assert found == instead(tmp_path) and mode_of(found) == mode_of(found.parent) == 0o700
    told(capfd, found.parent, *words)


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_folder_that_others_write_to(tmp_path, capfd, mode):
    """Also with a sticky bit: it keeps others from files that are there, not from adding some."""
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    refuse(tmp_path, capfd, folder, f"{mode:o}")


@pytest.mark.parametrize("above", ["cache", "."])
def test_folders_above_it_that_others_write_to(tmp_path, capfd, above):
    """Whoever may write there may put another folder in its place; a sticky bit keeps them from it."""
    (tmp_path / "cache" / "kernels").mkdir(parents=True)
    folder = tmp_path / above
    before = mode_of(folder)
    folder.chmod(0o1777)
    assert cache_files.folder("kernels") == tmp_path / "cache" / "kernels"
    if above == "cache":
        folder.chmod(0o777)
        refuse(tmp_path, capfd, folder)
    else:  # the temporary folder is as open there
        folder.chmod(0o777)
        assert cache_files.folder("kernels") is None
        told(capfd, folder, "no cache files are used")
    folder.chmod(before)


@as_root
@pytest.mark.parametrize("part", [".", "cache", "cache/kernels"])
def test_folders_of_somebody_else(tmp_path, monkeypatch, capfd, part):
    (tmp_path / "somebody" / "cache" / "kernels").mkdir(parents=True)
    folder = tmp_path / "somebody" / part
    os.chown(folder, STRANGER, -1)
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "somebody" / "cache"))
    refuse(tmp_path, capfd, folder, f"uid {STRANGER}")


@as_root
def test_nothing_is_made_in_a_home_of_somebody_else(tmp_path, monkeypatch, capfd):
    """As under `sudo` that keeps HOME: files of root would lie there."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, STRANGER, STRANGER)
    monkeypatch.setenv("PRISMM_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(home))
    refuse(tmp_path, capfd, home)
    assert list(home.iterdir()) == []


@as_root
def test_a_group_may_write_where_it_is_the_users_own(tmp_path, capfd):
    """Root's group has root alone, as on many systems a user's has the user."""
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o775)
    assert cache_files.folder("kernels") == folder
    os.chown(folder, -1, STRANGER)
    refuse(tmp_path, capfd, folder, "775")


def test_links_to_folders(tmp_path, monkeypatch, capfd):
    """The user's own are followed, and what they lead to is looked at; others' are not."""
    (tmp_path / "far" / "off").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "off")
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "link"))
    assert cache_files.folder("kernels") == tmp_path / "far" / "off" / "kernels"
    assert capfd.readouterr().err == ""
    (tmp_path / "far").chmod(0o777)
    refuse(tmp_path, capfd, tmp_path / "far")
    (tmp_path / "far").chmod(0o755)
    if os.geteuid() == 0:
        os.chown(tmp_path / "link", STRANGER, -1, follow_symlinks=False)
        cache_files.tell.cache_clear()
        refuse(tmp_path, capfd, tmp_path / "link")


@as_root
def test_links_that_the_users_own_lead_to(tmp_path, monkeypatch, capfd):
    """What somebody else points to may be any folder of the user's."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "sticky" / "theirs").symlink_to("../mine")
    (tmp_path / "link").symlink_to("sticky/theirs")
    (tmp_path / "first").symlink_to(tmp_path / "link")
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "first"))
    assert cache_files.folder("kernels", make=False) is None
    assert cache_files.folder("kernels") == tmp_path / "mine" / "kernels" and capfd.readouterr().err == ""
    os.chown(tmp_path / "sticky" / "theirs", STRANGER, -1, follow_symlinks=False)
    refuse(tmp_path, capfd, tmp_path / "sticky" / "theirs", f"uid {STRANGER}")


def name_in_list(path: Path, user: int) -> None:
    """Give another user all rights by an access control list (acl(5), struct posix_acl_xattr_header)."""
    nobody = 2**32 - 1
    entries = (0x01, 7, nobody), (0x02, 7, user), (0x04, 5, nobody), (0x10, 7, nobody), (0x20, 5, nobody)
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", packed)
    except (AttributeError, OSError) as error:
        pytest.skip(f"no access control lists here: {error}")


@as_root
def test_users_that_an_access_control_list_names(tmp_path, capfd):
    """Its mask stands where the group's rights would, so the folder looks as if a group of the user's own had them."""
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    cache_files.write(folder / "file", b"content")
    name_in_list(folder / "file", STRANGER)
    with pytest.raises(FileError, match=r"other users can write to .*file"):
        cache_files.read(folder / "file")
    (folder / "file").chmod(0o755)
    assert cache_files.read(folder / "file") == b"content"
    name_in_list(folder, STRANGER)
    refuse(tmp_path, capfd, folder, "775", "chmod go-w")
    folder.chmod(0o755)
    assert cache_files.folder("kernels") == folder


@as_root
def test_a_link_of_somebody_else_in_the_temporary_folder(tmp_path, monkeypatch, capfd):
    """It would have files made wherever it points to."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "file"))
    (tmp_path / "mine").mkdir()
    instead(tmp_path).parent.symlink_to(tmp_path / "mine")
    os.chown(instead(tmp_path).parent, STRANGER, -1, follow_symlinks=False)
    assert cache_files.folder("kernels") is None
    told(capfd, "file is not a folder", "no cache files are used")
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("what", ["file", "loop", "longer loop", "dangling"])
def test_what_is_no_folder(tmp_path, capfd, what):
    cache = tmp_path / "cache"
    if what == "file":
        cache.write_text("text")
        refuse(tmp_path, capfd, cache, "not a folder")
        assert cache.read_text() == "text"
    elif what.endswith("loop"):
        cache.symlink_to(cache if what == "loop" else f"../{tmp_path.name}/cache")
        refuse(tmp_path, capfd, cache)
    else:
        cache.symlink_to(tmp_path / "missing")
        assert cache_files.folder("kernels") == tmp_path / "missing" / "kernels"


def test_a_look_makes_nothing(tmp_path, capfd):
    assert cache_files.folder("rates", make=False) is None
    assert not (tmp_path / "cache").exists() and list((tmp_path / "temporary").iterdir()) == []
    assert capfd.readouterr() == ("", "")


def own_folder() -> Path:
    found = cache_files.folder("kernels")
    assert found is not None
    return found


def test_files_that_others_may_have_written(tmp_path):
    path = own_folder() / "file"
    cache_files.write(path, b"content")
    path.chmod(0o666)
    with pytest.raises(FileError, match=r"other users can write to .*file \(mode 666"):
        cache_files.read(path)
    path.chmod(0o444)
    assert cache_files.read(path) == b"content"
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1)
        with pytest.raises(FileError, match=f"another user .uid {STRANGER}"):
            cache_files.read(path)
    cache_files.write(path, b"new")
    assert cache_files.read(path) == b"new" and path.stat().st_uid == os.geteuid()


def test_what_is_no_plain_file(tmp_path):
    """A reader of a FIFO would wait for ever; a link's file may be anything."""
    folder = own_folder()
    cache_files.write(folder / "file", b"content")
    (folder / "link").symlink_to(folder / "file")
    os.mkfifo(folder / "fifo", 0o600)
    (folder / "folder").mkdir(0o700)
    open_files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for name in ("fifo", "folder"):
        with pytest.raises(FileError, match="not a plain file"):
            cache_files.read(folder / name)
    with pytest.raises(OSError):
        cache_files.read(folder / "link")
    if open_files is not None:
        assert len(os.listdir("/proc/self/fd")) == open_files
    for name in ("link", "fifo"):
        cache_files.write(folder / name, name.encode())
        assert cache_files.read(folder / name) == name.encode()
    assert cache_files.read(folder / "file") == b"content"
    with pytest.raises(OSError):
        cache_files.write(folder / "folder", b"")
    assert sorted(x.name for x in folder.iterdir()) == ["fifo", "file", "folder", "link"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from prismm.core import cache_files

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
path = Path(sys.argv[1])
cache_files.write(path, bytes(1000))
try:
    cache_files.write(path, bytes(1001))
except OSError as error:
    print(error.errno, len(cache_files.read(path)))
"""


def test_above_the_limit_of_file_sizes_nothing_is_written():
    """Writing would send SIGXFSZ, which ends a process that does not ignore it."""
    folder = own_folder()
    ran = subprocess.run([sys.executable, "-c", LIMITED, str(folder / "file")], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "27 1000\n", ""), ran
    assert [x.name for x in folder.iterdir()] == ["file"]
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN  # Python's own choice, which others may not keep
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_readers_and_writers_at_once_see_whole_files():
    path = own_folder() / "file"
    contents = [bytes([x]) * (1 + 30_000 * x) for x in range(8)]
    cache_files.write(path, contents[0])
    failed: list[object] = []

    def work(which: int) -> None:
        for i in range(60):
            cache_files.write(path, contents[(which + i) % 8])
            found = cache_files.read(path)
            if found not in contents:
                failed.append((which, i, len(found)))

    threads = [threading.Thread(target=work, args=(x,)) for x in range(4)]
    for x in threads:
        x.start()
    for x in threads:
        x.join(60)
    assert failed == [] and [x.name for x in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_words_that_cannot_be_said_stop_nothing(redirection):
    """With stderr closed, Python's print would write to stdout."""
    program = "from prismm.core import cache_files; cache_files.tell('words'); print('done')"
    command = f'exec "$0" -c "$1" {redirection}'
    ran = subprocess.run(["sh", "-c", command, sys.executable, program], capture_output=True, text=True)
    assert ran.stdout == "done\n"
