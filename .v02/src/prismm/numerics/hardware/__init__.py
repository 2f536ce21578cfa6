"""Single instructions of real matrix engines: generated kernels, their proof, and answers collected from them.

`instructions` names them, `layouts` says where their fragments stand, `source` writes the kernel of one, `device`
compiles and runs it, `check` proves a kernel before its results are believed, and ``python -m
prismm.numerics.hardware.collect`` stores answers as corpora (`prismm.numerics.corpus`).
"""
