"""Encodes TensorBoard's records: protocol buffers with length and checksums."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping

from wholestep.callbacks.weights import Histogram

START = 1  # SessionLog.status


def frame_record(event: bytes) -> bytes:
    """The bytes of a record in the file."""
    length = struct.pack("<Q", len(event))
    return length + _masked_crc(length) + event + _masked_crc(event)


def event(
    step: int = 0,
    scalars: Mapping[str, float] | None = None,
    histograms: Mapping[str, Histogram] | None = None,
    file_version: str = "",
    session: int = 0,
    hparams: Mapping[str, bool | float | str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> bytes:
    """tensorflow.Event: wall_time = 1 (double), step = 2, file_version = 3, summary = 5, session_log = 7."""
    out = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step)
    if file_version:
        out += _field(3, file_version.encode())
    values = [_value(name, value) for name, value in (scalars or {}).items()]
    values += [_histogram(name, histogram) for name, histogram in (histograms or {}).items()]
    values += [_hparams(hparams)] if hparams else []
    values += [_text(name, text) for name, text in (texts or {}).items()]
    if values:
        out += _field(5, b"".join(_field(1, value) for value in values))
    if session:
        out += _field(7, b"\x08" + _varint(session))  # SessionLog: status = 1
    return out


def _value(name: str, value: float) -> bytes:
    """Summary.Value: tag = 1, simple_value = 2 (float)."""
    return _field(1, name.encode()) + b"\x15" + struct.pack("<f", value)


def _histogram(name: str, h: Histogram) -> bytes:
    """Summary.Value: tag = 1, histo = 5.

    HistogramProto, all doubles: min, max, num, sum, sum_squares = 1 to 5, bucket_limit = 6 and bucket = 7 packed; the
    limits are the upper ones.
    """
    counts, edges = h.counts.astype("<f8"), h.edges.astype("<f8")
    numbers = (edges[0], edges[-1], counts.sum(), h.sum, h.sum_of_squares)
    proto = b"".join(_varint(i << 3 | 1) + struct.pack("<d", n) for i, n in enumerate(numbers, 1))
    proto += _field(6, edges[1:].tobytes()) + _field(7, counts.tobytes())
    return _field(1, name.encode()) + _field(5, proto)


def _text(name: str, text: str) -> bytes:
    """Summary.Value: tag = 1, tensor = 8, metadata = 9 with plugin_data = 1: plugin_name = 1.

    TensorProto: dtype = 1 (DT_STRING is 7), tensor_shape = 2 (of a scalar it is empty), string_val = 8.
    """
    tensor = b"\x08\x07" + _field(2, b"") + _field(8, text.encode(errors="replace"))
    return _field(1, name.encode()) + _field(8, tensor) + _field(9, _field(1, _field(1, b"text")))


def _hparams(hparams: Mapping[str, bool | float | str]) -> bytes:
    """Summary.Value: tag = 1, metadata = 9 with plugin_data = 1: plugin_name = 1, content = 2.

    The content is tensorboard.hparams.HParamsPluginData: session_start_info = 3; in it hparams = 1, a map (key = 1,
    value = 2), and start_time_secs = 5 (double).
    """
    entries = (_field(1, _field(1, name.encode()) + _field(2, _plain(value))) for name, value in hparams.items())
    start = b"".join(entries) + b"\x29" + struct.pack("<d", time.time())
    plugin = _field(1, b"hparams") + _field(2, _field(3, start))
    return _field(1, b"_hparams_/session_start_info") + _field(9, _field(1, plugin))


def _plain(value: bool | float | str) -> bytes:
    """google.protobuf.Value: number_value = 2 (double), string_value = 3, bool_value = 4."""
    if isinstance(value, bool):
        return b"\x20" + _varint(value)
    return _field(3, value.encode(errors="replace")) if isinstance(value, str) else b"\x11" + struct.pack("<d", value)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def _crc_table() -> list[int]:
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


_CRC32C = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    """The masked CRC-32C of the format."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
