"""The file of a compiled kernel: what Numba's dispatcher asks of a cache.

Numba's own cache keeps an index and a data file a function, both pickles, and loads whatever is in them: a damaged byte
crashes the process or changes results. Here a kernel has one file, found by its name, signature, target and what Numba
is told of optimizing; it begins with the SHA-256 of its place and of what follows, and is unpickled only where that is
right. Whatever else is met is compiled anew and replaced.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from pathlib import Path
from typing import Any

from numba.core import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from prismm.core import cache_files
from prismm.errors import FileError

_SEAL = hashlib.sha256().digest_size
_SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT")
"""Those of Numba's settings (environment variables NUMBA_…) that make other code, ten times as slow say."""


class KernelFile(NullCache):  # type: ignore[misc]
    """The file of one kernel in a folder whose name stands for all sources; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, name: str, signature: str) -> None:
        self._folder, self._name, self._signature = folder, re.sub(r"[<>]", "", name), signature

    @property
    def cache_path(self) -> str | None:
        """The folder, for Numba's statistics."""
        return None if self._folder is None else str(self._folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel, or None where it is to be compiled, which is said once."""
        # What compiled code calls at run time. Numba's own caches import all that its compiler knows, SciPy's linear
        # algebra too: 0.25 s that a kernel from disk does not need.
        rtsys.initialize(target_context)
        if self._folder is not None:
            try:
                content = self._content(self._folder, target_context.codegen())
                if content is not None:
                    return CompileResult._rebuild(target_context, *pickle.loads(content))
            except FileError as error:
                cache_files.tell(f"warning: a compiled kernel is not loaded: {error}")
            except Exception:
                pass  # not there, or not to be read: made anew, whatever the reason
        cache_files.announce("compiling kernels for this CPU (once; about 20 s)")
        return None

    def is_there(self, target_context: Any) -> bool:
        """Whether the compiled kernel is on disk, whole; it is not loaded."""
        if self._folder is None:
            return False
        try:
            return self._content(self._folder, target_context.codegen()) is not None
        except (FileError, OSError):
            return False

    def _content(self, folder: Path, codegen: Any) -> memoryview | None:
        """The contents of the file; None where its hash differs. Raises the errors of `cache_files.read`."""
        path = self._path(folder, codegen)
        sealed = cache_files.read(path)
        content = memoryview(sealed)[_SEAL:]
        return content if sealed[:_SEAL] == _seal(path, content) else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled kernel, where the disk takes it."""
        if self._folder is None or data.lifted or data.library.has_dynamic_globals:
            return
        path = self._path(self._folder, data.codegen)
        content = dumps(data._reduce())
        try:
            cache_files.write(path, _seal(path, content) + content)
        except OSError as error:
            reason = error.strerror or error
            cache_files.tell(f"warning: compiled kernels are not kept in {self._folder}: {reason}")

    def _path(self, folder: Path, codegen: Any) -> Path:
        """The file for the processor that is compiled for, and as is asked for now."""
        settings = [getattr(config, name, None) for name in _SETTINGS]
        key = repr((self._signature, codegen.magic_tuple(), settings)).encode()
        return folder / f"{self._name}-{hashlib.sha256(key).hexdigest()[:32]}.kernel"


def _seal(path: Path, content: bytes | memoryview) -> bytes:
    """The hash of a file's content and place: a file under another one's name is as wrong as a damaged one."""
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}\n".encode())
    digest.update(content)
    return digest.digest()
