"""Random numbers as a function of where they are used: (seed, epoch, step, ...) -> an independent stream.

Nothing draws from a stream that an earlier step has advanced, so resuming is skipping, on any number of ranks.
"""

import numpy as np
import torch


def mix(*numbers: int) -> int:
    """One 63-bit seed from several 64-bit numbers; any change in any of them gives an unrelated seed."""
    # Their count and two words each: SeedSequence alone takes (1,) and (1, 0) for the same.
    words = [len(numbers), *(word for n in numbers for word in (n & 0xFFFFFFFF, n >> 32 & 0xFFFFFFFF))]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(*numbers: int) -> torch.Generator:
    """A CPU generator seeded with `mix(*numbers)`; drawn on the CPU, numbers are the same on every device."""
    return torch.Generator().manual_seed(mix(*numbers))
