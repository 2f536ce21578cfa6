"""Exact partial products: one product whose inner dimension lies in pieces, on devices, in processes or in chunks.

Row panels of A and column panels of B are cut along k; nobody holds a whole row. The steps below give the bits of the
product on one device, whatever the cut, because all that pieces send is added or compared exactly: reductions are
associative and commutative, and start from zeros.

| step | a piece gives | combined by | bytes |
| --- | --- | --- | --- |
| `scales.extents` | per row and column: exponent of the largest element, lowest bit | maximum | 16 a row |
| `scales.norms`, with the exponents of all | Σv², Σv, counts of large elements | sum | 56 a row |
| `residues.split`, with the shifts of all | what rounding loses, per row and column | sum | 16 a row |
| `residues.multiply` | digits: a byte for each modulus | `residues.add`: sum modulo each | moduli an entry |
| `recompute.magnitudes`, of uncertified entries | Σ of 7-bit magnitudes, nonzero products | sum | 16 an entry |
| `more.answers`, where many are left | digits of up to 49 moduli, what rounding lost | `more.total` | moduli an entry |
| `recompute.exact_sums`, of what that leaves | the exact sum, as limbs of 32 bits in int64 | sum | 8 a limb |
| `specials.flags`, of rows and columns with Inf or NaN | which specials the sum meets | maximum | 3 an entry |

Whoever has the combined digits calls `join.join`, which rounds once and certifies as on one device
(`cpu.residues.multiply`). Uncertified entries are decided by magnitudes and exact sums of their rows and columns:
no operand is gathered.

Why bytes of residues and no limbs: of a float64 product by 15 moduli |C'| is below 2^117. Limbs that add without
carries hold 40 bits of it in an int64: 24 bytes an entry, which any library sums. Residues take 15 bytes, one for each
modulus, and have to be summed modulo these by whoever receives them. Each piece sends an entry once (all-to-all), so
fewer bytes decide; for entries that are recomputed, whose sums are of any length, limbs do.
"""
