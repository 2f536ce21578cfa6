"""Tickets of work that programs of one kernel share, and stages that wait for each other.

Tickets are numbered in the order of the work. A program waits only for work with earlier tickets, and the programs that
hold those tickets are already running. They tell what they have finished before they wait themselves, and at their end.
So the kernel cannot deadlock, however few of its programs run at the same time.
"""

import triton
import triton.language as tl


@triton.jit
def take(tickets):
    """The next ticket. Data that other programs stored are visible only after `wait_for`."""
    return tl.atomic_add(tickets, 1, sem="relaxed")


@triton.jit
def finished(done, count):
    """Tell that the work of so many tickets is done, all that were not told before: what any thread of the program
    stored is seen by whoever `wait_for`s. A program tells before it waits.
    """
    tl.debug_barrier()
    tl.atomic_add(done, count, sem="release")


@triton.jit
def wait_for(done, count):
    """Go on when the work of so many tickets is done."""
    seen = tl.atomic_add(done, 0, sem="relaxed")
    while seen < count:
        seen = tl.atomic_add(done, 0, sem="relaxed")
    # Each acquiring read empties the L1 cache. The compiler drops the acquire where the value is not used.
    seen = tl.atomic_add(done, 0, sem="acquire")
    while seen < count:
        seen = tl.atomic_add(done, 0, sem="acquire")
    tl.debug_barrier()
