"""Recorded dot products of any length, run on a model and compared with their answers, in one call.

A row stands in a flat array as significands and exponents of a, then of b (`dot_operands.decode_rows` without flushing:
that is done here, so that all models share the rows). Rows that are flushed, or that have scales and end within an
instruction, are copied to a buffer of zeros first. Few rows tell a wrong model from a right one, so a run ends once
enough of them came out wrong: a candidate costs what its first mismatches cost, 0.1 to 1 us a row, and not what all
answers do.
"""

import numpy as np

from prismm.core.jit import bits_of, device, kernel
from prismm.core.limbs import LIMBS, keep_apart
from prismm.core.pointers import pointer
from prismm.numerics.kernels.dot_model import dot_of
from prismm.numerics.kernels.dot_parameters import (
    ALL,
    DEPTH,
    FILLED,
    FLUSH,
    FLUSH_INPUTS,
    INFINITY,
    INPUT_FRACTION,
    KEEP,
    LENGTH,
    MINUS,
    NO_SCALE,
    PARAMETERS,
    SCALE,
    WIDTH,
    T,
)


@device
def _copied(source, count, fraction, flush, target, width):
    """`count` elements to significands and exponents `width` apart, subnormal ones flushed."""
    keep_apart()
    for h in range(count):
        m, e = source[h], source[count + h]
        if flush != KEEP and m != 0 and e < INFINITY and abs(m) >> fraction == 0:
            e = np.int64(MINUS if m < 0 and flush == FLUSH else 0)
            m = np.int64(0)
        target[h] = m
        target[width + h] = e


@device
def _cleared(target, first, last, width):
    for h in range(first, last):
        target[h] = 0
        target[width + h] = 0


@kernel(
    "float64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], float64[::1], float64[::1], float64[::1], "
    "int64[::1], boolean, boolean, float64, int64[::1], int8[::1], int64[::1])"
)
def replay(
    parameters, sequence, rows, places, lengths, c, d, weights, order, signs, chained, limit, buffer, wrong, done
):
    """The weights of those rows of `order` whose answer is not d, added up; it ends where they exceed `limit`.

    Args:
        parameters, sequence: the model, as `engine.dots` takes them, but for what depends on the length.
        rows, places, lengths: see the module; row i begins at places[i].
        c, d: addends and answers.
        weights: by place in `order`.
        order: which rows, in which order.
        signs: whether zeros have to have the right sign.
        chained: whether groups follow one another, so that products stand behind the zeros.
        limit: see above.
        buffer: zeros, four times as long as the longest row of whole instructions; left as zeros.
        wrong: gets 1 for a wrong answer and 0 for a right one, by place in `order`.
        done: gets how many rows were run, and how many products they have.
    """
    own = np.empty(PARAMETERS, np.int64)
    own[:] = parameters[:PARAMETERS]
    p, sequence_of = pointer(own, 0), pointer(sequence, 0)
    own_terms = np.empty(T + 4096, np.int64)
    own_limbs = np.zeros(2 * LIMBS, np.int64)
    terms, limbs = pointer(own_terms, 0), pointer(own_limbs, 0)
    depth, flush, fraction = p[DEPTH], p[FLUSH_INPUTS], p[INPUT_FRACTION]
    width = buffer.size // 4
    left, right = pointer(buffer, 0), pointer(buffer[2 * width :], 0)
    filled = 0
    total = 0.0
    done[0], done[1] = 0, 0
    for n in range(order.size):
        at = order[n]
        k = lengths[at]
        done[0] += 1
        done[1] += k
        whole = (k + depth - 1) // depth * depth
        a = pointer(rows[places[at] :], 0)
        b = pointer(rows[places[at] + 2 * k :], 0)
        plain = p[SCALE] == NO_SCALE
        own[LENGTH], own[FILLED] = whole if chained else k, k if plain else ALL
        if flush == KEEP and (whole == k or plain):
            own[WIDTH] = k
            found = dot_of(p, sequence_of, a, b, c[at], 0, k, terms, limbs)
        else:
            _copied(a, k, fraction, flush, left, width)
            _copied(b, k, fraction, flush, right, width)
            _cleared(left, k, filled, width)
            _cleared(right, k, filled, width)
            filled = k
            own[WIDTH] = width
            found = dot_of(p, sequence_of, left, right, c[at], 0, k, terms, limbs)
        wanted = d[at]
        same = found == wanted and (not signs or (bits_of(found) < 0) == (bits_of(wanted) < 0))
        if same or (found != found and wanted != wanted):
            wrong[n] = 0
            continue
        wrong[n] = 1
        total += weights[n]
        if total > limit:
            break
    _cleared(left, 0, filled, width)
    _cleared(right, 0, filled, width)
    own_terms[0] = own_limbs[0]  # alive until here
    return total
