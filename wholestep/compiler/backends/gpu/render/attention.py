"""Attention kernels: calls of the functions of native/attention.h, or of native/attention_mma.h with tensor cores."""

from __future__ import annotations

from wholestep.compiler.backends.gpu.grids.attention_calls import makes_keys, makes_queries
from wholestep.compiler.backends.gpu.grids.attention_mma import MmaTiles
from wholestep.compiler.backends.gpu.kernel_schedule import Form
from wholestep.compiler.backends.gpu.render.attention_text import BACKWARD, FORWARD, KINDS, AttentionText, flags
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.target import costs_of

FRAGMENTS = {"bfloat16": "ws_bf16_fragments", "float16": "ws_f16_fragments", "float32": "ws_tf32_fragments"}


def render_call(w: GpuWriter) -> None:
    text = MmaText(w) if w.schedule.form == Form.ATTENTION_MMA else PlainText(w)
    queries, keys = w.axis_extent(text.axes.queries), w.axis_extent(text.axes.keys)
    w.emit(f"const int queries = {queries}, keys = {keys};")
    w.emit(f"const int down = queries > 0 ? (queries + {text.rows - 1}) / {text.rows} : 1;")
    w.emit(f"const int lead = {w.count(text.axes.lead)}, heads = {w.axis_extent(text.axes.group)};")
    if text.call.routine == "attention":
        text.over_queries("blockIdx.x", text.forward(), FORWARD, ("out", "lse"))
        return
    if isinstance(text, MmaText) and text.tiles.short:
        text.over_heads(text.head_of("ws_mma_attention_short", "dmask" in text.results))
        return
    first = "0"
    if makes_keys(text.call):
        w.emit(f"const int across = keys > 0 ? (keys + {text.rows - 1}) / {text.rows} : 1, part = lead * across;")
        for part, head in enumerate(text.backward_keys()):
            with w.block(f"if (blockIdx.x >= {part} * part && blockIdx.x < {part + 1} * part)"):
                text.over_keys(f"(blockIdx.x - {part} * part)", head)
            first = f"{part + 1} * part"
    if makes_queries(text.call):
        with w.block(f"if (blockIdx.x >= {first})"):
            text.over_queries(f"(blockIdx.x - {first})", text.backward_queries(), BACKWARD, ("dq", "dmask"))


class PlainText(AttentionText):
    """Products on the ordinary cores: exact float32 and float64."""

    def __init__(self, w: GpuWriter) -> None:
        tile, group = w.schedule.tile
        super().__init__(w, tile)
        sizes = f"{group}, {tile}, {w.axis_extent(self.axes.width)}, {w.axis_extent(self.axes.values)}"
        options = flags(self.is_aligned()), sizes, flags(self.causal, self.masked)
        self.template = ", ".join((self.type, KINDS[self.call.dtype], self.out, *options))
        kind = "FORWARD" if self.call.routine == "attention" else "BACKWARD"
        w.emit(f"__shared__ __align__(16) {self.type} memory[ws_heads<{self.type}, {sizes}>::{kind}];")

    def head_of(self, function: str) -> str:
        """The name of a function, its template arguments, and its first argument."""
        return f"{function}<{self.template}>(memory,"

    def forward(self) -> str:
        return self.head_of("ws_attention")

    def backward_queries(self) -> str:
        return self.head_of("ws_attention_queries")

    def backward_keys(self) -> list[str]:
        return [self.head_of("ws_attention_keys")]


class MmaText(AttentionText):
    """Products on tensor cores."""

    def __init__(self, w: GpuWriter) -> None:
        self.tiles = MmaTiles(*w.schedule.tile)
        super().__init__(w, self.tiles.rows)
        if self.tiles.holds_queries(self.call) and not self.causal:  # causal masks need registers: these would spill
            w.resident = costs_of(w.plan).attention.mma_resident

    def head_of(self, function: str, *options: bool) -> str:
        """The name of a function and its template arguments."""
        t, w = self.tiles, self.w
        sizes = (t.warps, t.fragments, t.others, t.stages)
        widths = (w.axis_extent(self.axes.width), w.axis_extent(self.axes.values))
        tiles = f"ws_tiles<{', '.join((FRAGMENTS[self.call.dtype.name], *map(str, sizes), *widths))}>"
        return f"{function}<{tiles}, {self.out}, {flags(self.is_aligned(), self.causal, self.masked, *options)}>("

    def forward(self) -> str:
        return self.head_of("ws_mma_attention")

    def backward_queries(self) -> str:
        return self.head_of("ws_mma_attention_queries", "dmask" in self.results)

    def backward_keys(self) -> list[str]:
        """One call, or one call for the gradients of the keys and one for the gradients of the values."""
        parts = [(True, True)] if self.tiles.parts == 1 else [(True, False), (False, True)]
        return [self.head_of("ws_mma_attention_keys", *part) for part in parts]
