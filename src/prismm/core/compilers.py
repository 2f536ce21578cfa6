"""How Numba compiles here: kernels to machine code that Python can call, helpers only to what kernels take in.

Numba makes of every function, the smallest helper too, machine code, a wrapper for Python and one for C. Nothing but a
kernel is called from outside, and a kernel's code is optimized and made with the helpers' linked in: for a helper the
machine code and the wrappers are a third of the time and nothing that anyone runs.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.errors import CompilerError
from numba.core.typed_passes import NativeLowering


class KernelCompiler(Compiler):  # type: ignore[misc]
    """Compiles what Python calls and C does not."""

    def define_pipelines(self) -> list[Any]:
        """Numba's own passes."""
        self.state.flags.no_cfunc_wrapper = True
        return super().define_pipelines()  # type: ignore[no-any-return]


class HelperCompiler(KernelCompiler):
    """Compiles what kernels alone call."""

    def define_pipelines(self) -> list[Any]:
        """Numba's own passes, to the end of lowering."""
        state = self.state
        state.flags.no_cpython_wrapper = state.flags.no_compile = True
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        (passes,) = super().define_pipelines()
        passes.add_pass_after(_Linked, NativeLowering)
        passes.finalize()
        return [passes]


class _LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """A helper's optimized module, for others to link; it goes to no machine code of its own."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=False)
class _Linked(LoweringPass):  # type: ignore[misc]
    """Tells Numba which library callers link, by what stands for the function that there is not."""

    _name = "prismm_linked"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Set the result's entry point: a built-in method that none other equals, as Numba asks, and that always
        raises, should anyone call it.

        Raises:
            CompilerError: if a helper that counts no references calls one that returns arrays: it would never free
                them.
        """
        if not state.flags.nrt:
            for call, signature in state.calltypes.items():
                callee = state.typemap.get(call.func.name) if getattr(call, "op", None) == "call" else None
                if isinstance(callee, types.Dispatcher) and self._owned(state, signature.return_type):
                    raise CompilerError(
                        f"{state.func_id.func_qualname} counts no references, but takes arrays from {callee}"
                    )
        entry = set[None]().pop
        state.targetctx.insert_user_function(entry, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=entry)
        return True

    @staticmethod
    def _owned(state: Any, kind: Any) -> bool:
        """Whether a value of a type may refer to memory that is counted."""
        found: bool = state.targetctx.data_model_manager[kind].contains_nrt_meminfo()
        return found
