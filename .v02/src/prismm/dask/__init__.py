"""Products of dask arrays: lazy graphs whose tasks multiply chunks. Dask is imported only when its arrays come.

A result chunk comes of a row of chunks of A and a column of chunks of B. Where the inner dimension is one chunk, a task
multiplies two chunks (`product`). Otherwise pieces are multiplied apart and meet in a tree: in exact integers, with the
bits of the product in one piece (`exact`), or in a sum of rounded products (`rounded`).
"""
