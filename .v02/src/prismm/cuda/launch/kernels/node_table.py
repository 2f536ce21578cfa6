"""How a graph is described to the compiled function that launches it: places in one array of int64, its *table*.

First the head, then the addresses of the call before, then the nodes, then their slots.
"""

EXECUTABLE, IS_CAPTURING, LAUNCH, SET_KERNEL, SET_MEMSET, MOVE_MAP, CONTEXT, NODES, FACTORS_CHANGED, STATUS = range(10)
"""Places of the HEAD: the graph, addresses of the driver's functions, the CUDA context, how many nodes, whether any
factor is another one than in the call before, and a word for an answer of the driver's."""
CAPTURING = -1
"""What `queue` returns where the stream is captured, and nothing was launched."""
BASES, NODE = 10, 26
"""Places of the addresses of the call before, behind which factors stand, and of the first node."""
ADDRESSES = 7
MOST_FACTORS = NODE - BASES - ADDRESSES
HANDLE, PARAMETERS, USES, FIRST_SLOT, FIRST_MAP, END, WORDS = range(7)
"""Places of a node, and how many there are. USES: a bit for each base that its parameters depend on, bit ADDRESSES for
factors. Slots: words of three, where an address is stored, the base, the offset. Maps of TMA: likewise. A node that
sets memory has no map and FIRST_MAP is -1."""
SLOT = 3
