"""Exact partial products on a GPU: one product whose inner dimension lies in pieces, one on each GPU.

The steps of `prismm.cpu.partial`, with the same integers; each gives what the pieces combine, and takes what all of
them gave together.

| step | a piece gives | combined by | bytes |
| --- | --- | --- | --- |
| `steps.measure_largest` | per row and column: the pattern of the largest magnitude | maximum | 8 a row |
| `steps.measure_norms`, with the largest of all | Σv², Σv, counts of large elements | sum | 56 a row |
| `steps.split`, with the norms of all | what rounding loses, per row and column | sum | 8 a row |
| `steps.multiply` | digits: a byte for each modulus | `steps.add`: sum modulo each | moduli an entry |

Of a complex product there are three times as many digits: of the products of real parts, of imaginary parts, and of
their sums.

Whoever has the combined digits calls `steps.join`, which stores what it certifies and says of which tiles it does not.
Those are for `cpu.partial.join`: their digits are few, and no operand is needed.
"""
