"""What the kernels of words compute, in NumPy and a simulated matrix unit."""

import numpy as np

from prismm import numerics
from prismm.cuda.multiword.launches import WordFormat
from prismm.formats import FP16, Format


def real_vectors(x: np.ndarray, side: str) -> np.ndarray:
    """The vectors of an operand in real numbers, one a row: see `cuda.multiword.kernels.split`."""
    x = x if side == "left" else x.T
    if x.dtype.kind != "c":
        return x
    pairs = np.stack([x.real, x.imag], axis=-1)
    if side == "left":
        return pairs.reshape(x.shape[0], -1)
    imaginary = pairs[..., ::-1]
    real = pairs * np.float32([1.0, -1.0])
    return np.stack([real, imaginary], axis=1).reshape(2 * x.shape[0], -1).astype(np.float32)


def rounded(x: np.ndarray, format: Format) -> np.ndarray:
    """RN(x), finite float32, in FP16, or in a format with float32's exponents."""
    if format == FP16:
        return x.astype(np.float16).astype(np.float32)
    drop = 23 - format.fraction_bits
    bits = x.view(np.int32)
    return ((bits + (1 << (drop - 1)) - 1 + ((bits >> drop) & 1)) >> drop << drop).view(np.float32)


def split(x: np.ndarray, words: WordFormat, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Words (count, vectors, pitch) in float32, and scales (chunks, vectors), of finite real vectors (vectors, k)."""
    vectors, k = x.shape
    pitch = -(-k // 64) * 64
    chunks = -(-pitch // chunk)
    padded = np.zeros((vectors, chunks * chunk), np.float32)
    padded[:, :k] = x
    pieces = padded.reshape(vectors, chunks, chunk)
    largest = np.abs(pieces).max(2)
    e = np.maximum(np.frexp(largest)[1], -100)
    rest = pieces * np.ldexp(np.float32(1.0), 15 - e)[..., None]
    found = []
    for _ in range(words.count):
        word = rounded(rest, words.format)
        found.append(word.reshape(vectors, -1)[:, :pitch])
        rest = (rest - word) * np.float32(2.0**words.amplified)
    scales = np.where(largest > 0, np.ldexp(np.float32(1.0), e - 15), np.float32(0.0))
    return np.stack(found), scales.T.astype(np.float32)


def product(
    a: np.ndarray, b: np.ndarray, words: WordFormat, chunk: int, unit: str, direct: bool = False, shares: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """(entries in real numbers, the products of the largest scales), as Hopper's kernels make them on a unit; shares:
    of the chunks.
    """
    model = numerics.engine(f"{unit}.{words.format.name}.fp32")
    x, s = split(real_vectors(a, "left"), words, chunk)
    y, t = split(real_vectors(b, "right"), words, chunk)
    depth = 64 if words.format.name != "tf32" else 32
    p = words.count
    pairs = [(w, p - 1 - total - w) for total in range(p - 1) for w in range(p - total)]
    shares = min(shares, s.shape[0])
    sums = np.zeros((shares, x.shape[1], y.shape[1]), np.float32)
    for c in range(s.shape[0]):
        own = next(t for t in range(shares) if c < (t + 1) * s.shape[0] // shares)
        at = slice(c * chunk, min(x.shape[2], (c + 1) * chunk))
        steps = [slice(h, h + depth) for h in range(at.start, at.stop, depth)]
        left = np.concatenate([x[w][:, step] for step in steps for w, _ in pairs], axis=1)
        right = np.concatenate([y[v][:, step] for step in steps for _, v in pairs], axis=1)
        rest = numerics.gemm(model, left, right.T).astype(np.float32)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            rest = rest * np.float32(2.0**-words.amplified)
            high = numerics.gemm(model, x[0][:, at], y[0][:, at].T, rest if direct else None).astype(np.float32)
            both = high if direct else high + rest
            sums[own] += (both * s[c][:, None]) * t[c][None, :]
    entries = sums[0]
    for one in sums[1:]:
        entries = entries + one
    return entries, s.max(0).astype(np.float64)[:, None] * t.max(0).astype(np.float64)[None, :]


def formats() -> dict[str, WordFormat]:
    """Those that a GPU has."""
    from prismm.cuda.multiword import launches as multiword_launches

    plain = WordFormat("cuda:fp16", FP16, 2)
    known = [
        multiword_launches.HALVES,
        plain,
        multiword_launches.TF32_PAIRS,
        multiword_launches.BF16_PAIRS,
        multiword_launches.BF16_TRIPLES,
    ]
    return {f"{w.format.name} {w.count} {w.amplified}": w for w in known}
