"""Transports of collectives between ranks: shared memory, authenticated sockets, MPI, NCCL."""
