"""Cost model of collectives on a network: exact bytes, and seconds by the α-β model.

A message of b bytes takes α + b / β: latency, and bandwidth of one rank.  Our engines use the direct algorithm, not a
ring: each rank sends part j of its values to rank j, adds the parts that it receives in the fixed order, and sends the
sum to all.  So an all-reduce of B bytes over n ranks is 2(n - 1) consecutive messages of B / n bytes:
2(n - 1) α + 2(n - 1) / n · B / β.
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
    """A network described by two numbers: the latency of an empty message, and the bandwidth of a rank.

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


# Bandwidths are those of the wire.  Latencies are those of small MPI messages: through the kernel's TCP on 10 and
# 25 Gb, past the kernel (RDMA) above.  Shared memory: measured for two ranks of MPICH on two cores.
NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "10Gb": Network(30, 1.25),
        "25Gb": Network(20, 3.125),
        "100Gb": Network(5, 12.5),
        "400Gb": Network(3, 50),
        "shm": Network(8, 1.0),
    }
)


def as_network(network: str | Network) -> Network:
    """The network itself, or the one with that name."""
    if isinstance(network, Network):
        return network
    if network not in NETWORKS:
        raise OptionError(
            f"network={network!r} is not known: expected one of {', '.join(NETWORKS)}, or "
            "ws.Network(latency_us=12, gigabytes_per_second=3.1)."
        )
    return NETWORKS[network]


# The number of messages that a collective over n ranks sends one after the other.
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
    """One collective of a step: its op, and the bytes of the complete tensor that is reduced, gathered or broadcast."""

    collective: str
    bytes: int
    axis: str = DATA  # axis of the mesh

    def bytes_sent(self, ranks: int) -> Fraction:
        """Bytes that a rank sends, on average over ranks; exact for each rank if the elements divide evenly."""
        return self.bytes * SENT[self.collective](ranks)

    def seconds(self, ranks: int, network: Network) -> float:
        """The time of the collective by the α-β model."""
        messages = MESSAGES[self.collective](ranks)
        return 1e-6 * network.latency_us * messages + float(self.bytes_sent(ranks)) / (
            1e9 * network.gigabytes_per_second
        )
