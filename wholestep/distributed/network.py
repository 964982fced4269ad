"""What collectives cost on a network: exact bytes, and seconds by the α-β model.

A message of b bytes takes α + b / β: the time to begin one, and the bandwidth of one rank.  Parts of a collective go
directly to whose they are, as our engines send them: each rank hands part j of its numbers to rank j, adds what it got
in the fixed order, and hands the sum of its part back to all.  So an all-reduce of B bytes over n ranks is 2(n - 1)
messages of B / n bytes, one after the other: 2(n - 1) α + 2(n - 1) / n · B / β.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from wholestep.compiler.ir.attrs import DATA
from wholestep.compiler.plan.io.traffic import SENT
from wholestep.errors import OptionError


@dataclass(frozen=True)
class Network:
    """A network by two numbers: the time of an empty message, and what a rank sends in a second.

    Example: `ws.Network(latency_us=12, gigabytes_per_second=3.1)`.
    """

    latency_us: float
    gigabytes_per_second: float

    def __post_init__(self) -> None:
        if self.latency_us < 0 or self.gigabytes_per_second <= 0:
            raise OptionError(
                "a network has a latency of at least 0 us and a bandwidth above 0 GB/s; received "
                f"{self.latency_us!r} us and {self.gigabytes_per_second!r} GB/s."
            )

    def __str__(self) -> str:
        return f"{self.latency_us:g} us, {self.gigabytes_per_second:g} GB/s"


# Bandwidths are those of the wire.  Latencies are what a small message of MPI takes there: through the kernel's TCP on
# 10 and 25 Gb, past the kernel (RDMA) above.  Shared memory: two ranks of MPICH on two cores, measured.
NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "10Gb": Network(30, 1.25),
        "25Gb": Network(20, 3.125),
        "100Gb": Network(5, 12.5),
        "400Gb": Network(3, 50),
        "shm": Network(8, 1.0),
    }
)


def as_network(given: str | Network) -> Network:
    """A network, or the one of that name."""
    if isinstance(given, Network):
        return given
    if given not in NETWORKS:
        raise OptionError(
            f"network={given!r} is not known: expected one of {', '.join(NETWORKS)}, or "
            "ws.Network(latency_us=12, gigabytes_per_second=3.1)."
        )
    return NETWORKS[given]


# Messages of a collective over n ranks that follow each other.
MESSAGES: Mapping[str, Callable[[int], int]] = MappingProxyType(
    {
        "all_reduce": lambda n: 2 * (n - 1),
        "reduce_scatter": lambda n: n - 1,
        "all_gather": lambda n: n - 1,
        "broadcast": lambda n: (n - 1).bit_length(),
    }
)


@dataclass(frozen=True)
class CollectiveCost:
    """One collective of a step: which, and the bytes of the whole tensor that is summed, gathered or handed out."""

    collective: str
    bytes: int
    axis: str = DATA  # of the grid in which ranks stand

    def sent(self, ranks: int) -> Fraction:
        """Bytes that a rank sends, on average over ranks: exactly so where the elements divide among them."""
        return self.bytes * SENT[self.collective](ranks)

    def seconds(self, ranks: int, network: Network) -> float:
        """By the α-β model."""
        messages = MESSAGES[self.collective](ranks)
        return 1e-6 * network.latency_us * messages + float(self.sent(ranks)) / (1e9 * network.gigabytes_per_second)
