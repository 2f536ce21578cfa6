"""How wrong a product is that was computed elsewhere: `prismm.check`.

`check` reads the operands, `residual` bounds c - ab for all entries at the speed of a product, and `recompute` compares
the few entries that this leaves uncertain with a correctly rounded product.
"""
