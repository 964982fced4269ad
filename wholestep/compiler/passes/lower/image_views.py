"""Views of NHWC images: other shapes of an NCHW image that have a form with channels last at no cost.

A group norm computes in (batch, groups, elements of a group), a signal is (batch, channels, length), and an upsampled
image begins as (batch, channels, rows, a, columns, b).  Read through an NHWC image, each of them would be a strided
copy.  A view describes the positions of its elements in an NHWC tensor, so that elementwise ops, broadcasts and sums of
the view are the same ops of that tensor:

    ChannelGroups   (N, G, C/G·H·W)    in (N, H, W, C); one group per channel: also signals
    RepeatedPixels  (N, C, H, a, W, b) in (N, H, a, W, b, C)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.types import Extent, Shape, divide, product
from wholestep.compiler.passes.lower.channels_last import LAST, SECOND, LayoutPropagation, propagate_layout

SWAP = (0, 2, 1)  # (N, C, H·W) -> (N, H·W, C)


def channels_last_views(graph: IRGraph) -> IRGraph:
    """The same program with images, and views of images, in NHWC layout."""
    return propagate_layout(graph, ViewPropagation())


@dataclass(frozen=True)
class ImageView(ABC):
    """A view of NHWC images of shape (N, H, W, C)."""

    image: Shape

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The shape in the original program."""

    @property
    @abstractmethod
    def storage_shape(self) -> Shape:
        """The shape with channels last."""

    @property
    def images(self) -> Shape:
        """The NHWC images that the view is a reshape of."""
        return self.image

    @abstractmethod
    def to_original(self, x: Node) -> Node:
        """The value in the original shape."""

    @abstractmethod
    def from_original(self, x: Node) -> Node:
        """The value with channels last."""

    @abstractmethod
    def expand(self, x: Node, axes: Sequence[int]) -> Node | None:
        """The broadcast of x along the other axes of the original shape, with channels last; None if it is a copy."""

    @abstractmethod
    def sum(self, x: Node, axes: Sequence[int]) -> Node | None:
        """The sum over axes of the original shape, as in the original program; None if it has no such form."""


@dataclass(frozen=True)
class ChannelGroups(ImageView):
    """Rows of the pixels of a group's channels."""

    groups: int

    @property
    def each(self) -> int:
        """The channels of a group."""
        channels = self.image[3]
        assert isinstance(channels, int), "a view is made of images with a fixed number of channels"
        return channels // self.groups

    @property
    def shape(self) -> Shape:
        n, h, w, _ = self.image
        return n, self.groups, product((self.each, h, w))

    @property
    def storage_shape(self) -> Shape:
        return self.image

    def to_original(self, x: Node) -> Node:
        return b.reshape(b.permute(x, (0, 3, 1, 2)), self.shape)

    def from_original(self, x: Node) -> Node:
        n, h, w, c = self.image
        return b.permute(b.reshape(x, (n, c, h, w)), (0, 2, 3, 1))

    def expand(self, x: Node, axes: Sequence[int]) -> Node | None:
        if 2 in axes:
            return None
        if 1 not in axes:
            return b.expand_to(x, self.storage_shape, tuple(axes))
        if self.each > 1:
            lead = x.type.shape[:-1]
            repeated = b.expand_to(x, (*lead, self.groups, self.each), tuple(range(x.type.rank)))
            x = b.reshape(repeated, (*lead, self.groups * self.each))
        return b.expand_to(x, self.storage_shape, tuple(3 if a == 1 else a for a in axes))

    def sum(self, x: Node, axes: Sequence[int]) -> Node | None:
        if 2 not in axes or 1 in axes:
            return None
        total = b.sum_axes(x, (0, 1, 2) if 0 in axes else (1, 2))
        if self.each == 1:
            return total
        lead = total.type.shape[:-1]
        split = b.reshape(total, (*lead, self.groups, self.each))
        return b.sum_axes(split, (len(lead) + 1,))


@dataclass(frozen=True)
class RepeatedPixels(ImageView):
    """Images whose pixels are divided into blocks of `tall` rows and `wide` columns; `image` has whole blocks."""

    tall: Extent
    wide: Extent

    @property
    def shape(self) -> Shape:
        n, h, w, c = self.image
        return n, c, h, self.tall, w, self.wide

    @property
    def storage_shape(self) -> Shape:
        n, h, w, c = self.image
        return n, h, self.tall, w, self.wide, c

    def to_original(self, x: Node) -> Node:
        return b.permute(x, (0, 5, 1, 2, 3, 4))

    def from_original(self, x: Node) -> Node:
        return b.permute(x, (0, 2, 3, 4, 5, 1))

    def expand(self, x: Node, axes: Sequence[int]) -> Node | None:
        last = [5 if a == 1 else a - 1 if a > 1 else a for a in axes]
        return b.expand_to(x, self.storage_shape, last) if last == sorted(last) else None

    @property
    def images(self) -> Shape:
        n, h, w, c = self.image
        return n, h * self.tall, w * self.wide, c

    def sum(self, x: Node, axes: Sequence[int]) -> Node | None:
        """The sum over each block, an image with channels last."""
        return b.sum_axes(x, (2, 4)) if tuple(axes) == (3, 5) else None


def view_of(image: Shape, shape: Shape) -> ImageView | None:
    """The view that has this original shape, of NHWC images of shape `image`; None if there is none."""
    n, h, w, c = image
    if not isinstance(c, int) or not shape or shape[0] != n:
        return None
    if len(shape) == 3 and isinstance(shape[1], int) and shape[1] > 0 and c % shape[1] == 0:
        view = ChannelGroups(image, shape[1])
        return view if view.shape == shape else None
    if len(shape) == 6 and shape[1] == c:
        rows, tall, columns, wide = shape[2:]
        whole = divide(h, tall) == rows and divide(w, wide) == columns
        return RepeatedPixels((n, rows, columns, c), tall, wide) if whole else None
    return None


class ViewPropagation(LayoutPropagation):
    """Also holds views of images, and takes permutes that a user wrote as a change of the layout."""

    def __init__(self) -> None:
        super().__init__()
        self.views: dict[Node, tuple[ImageView, Node]] = {}  # node -> its view, and its value with channels last
        self.images: set[Node] = set()  # nodes that are computed with channels last
        self.deferred: set[Node] = set()  # broadcasts and permutes, built in the layout of their readers

    def is_image(self, node: Node) -> bool:
        return node in self.images

    def in_original_layout(self, node: Node) -> Node:
        if node not in self.original and node not in self.channels_last:
            if node in self.views:
                view, value = self.views[node]
                self.original[node] = view.to_original(value)
            else:
                assert node in self.deferred, "nodes are visited in order"
                self.original[node] = node.with_inputs([self.in_original_layout(i) for i in node.inputs])
        return super().in_original_layout(node)

    def visit(self, node: Node) -> None:
        rule = self.RULES.get(node.op, ViewPropagation.elementwise if node.is_elementwise else None)
        if rule is None or not rule(self, node):
            super().visit(node)
        if node in self.channels_last and node not in self.original:
            self.images.add(node)

    def permute(self, node: Node) -> bool:
        """A change of the layout, or of (N, C, H·W) into (N, H·W, C)."""
        (source,), order = node.inputs, tuple(attrs_of(node, at.PermuteAttrs).order)
        if order == SECOND:
            self.channels_last[node] = self.in_original_layout(source)
            return True
        if order == LAST and self.is_image(source):
            self.original[node] = self.channels_last[source]
            return True
        if order != SWAP:
            return False
        view, value = self.views.get(source, (None, source))
        if isinstance(view, ChannelGroups) and view.each == 1:
            n, h, w, c = view.image
            self.original[node] = b.reshape(value, (n, product((h, w)), c))
        else:
            self.deferred.add(node)
        return True

    def reshape(self, node: Node) -> bool:
        (source,), shape = node.inputs, node.type.shape
        if len(shape) == 4 and (value := self.rows_of(source, shape)) is not None:
            self.channels_last[node] = b.reshape(value, tuple(shape[d] for d in LAST))
            return True
        view = view_of(self.channels_last[source].type.shape, shape) if self.is_image(source) else None
        if view is not None:
            self.views[node] = view, b.reshape(self.channels_last[source], view.storage_shape)
        return view is not None

    def rows_of(self, source: Node, shape: Shape) -> Node | None:
        """The value whose reshape is the NHWC form of a reshape of `source` to NCHW images; None if there is none."""
        if source in self.views:
            view, value = self.views[source]
            return value if view.images == tuple(shape[d] for d in LAST) else None
        swapped = source in self.deferred and source.op == "permute" and source.type.shape[:2] == shape[:2]
        return self.in_original_layout(source.inputs[0]) if swapped else None

    def expand(self, node: Node) -> bool:
        """A repetition of pixels; any other broadcast is built in the layout of its readers."""
        (source,), a = node.inputs, attrs_of(node, at.ExpandAttrs)
        if self.is_image(source):
            if len(a.shape) != 6 or tuple(a.axes) != (0, 1, 2, 4):
                return False
            value = self.channels_last[source]
            view = RepeatedPixels(value.type.shape, a.shape[3], a.shape[5])
            self.views[node] = view, b.expand_to(value, view.storage_shape, (0, 1, 3, 5))
            return True
        if source not in self.views:
            self.deferred.add(node)
        return source not in self.views

    def elementwise(self, node: Node) -> bool:
        view = next((self.views[i][0] for i in node.inputs if i in self.views), None)
        if view is None:
            return False
        self.views[node] = view, b.make(node.op, [self.in_view(i, view) for i in node.inputs], node.attrs)
        return True

    def in_view(self, node: Node, view: ImageView) -> Node:
        """An operand with channels last: held so, or a broadcast, or a strided view of the original."""
        if node in self.views and self.views[node][0] == view:
            return self.views[node][1]
        if node.op == "expand":
            axes = attrs_of(node, at.ExpandAttrs).axes
            if (expanded := view.expand(self.in_original_layout(node.inputs[0]), axes)) is not None:
                return expanded
        return view.from_original(self.in_original_layout(node))

    def sum(self, node: Node) -> bool:
        (source,), axes = node.inputs, attrs_of(node, at.SumAttrs).axes
        if source not in self.views:
            return self.is_image(source) and self.sum_pixels(node)
        view, value = self.views[source]
        total = view.sum(value, axes)
        if total is not None:
            (self.channels_last if total.type.rank == 4 else self.original)[node] = total
        return total is not None

    def gather(self, node: Node) -> bool:
        """Rows or columns of an image, by their numbers."""
        data, index = node.inputs
        if not self.is_image(data) or index.type.rank != 1:
            return False
        axis = LAST.index(attrs_of(node, at.GatherAttrs).axis)
        self.channels_last[node] = b.gather(self.channels_last[data], self.in_original_layout(index), axis)
        return True

    def sum_pixels(self, node: Node) -> bool:
        """The sum of an image over its rows or columns, if the axis that remains has one element."""
        (source,), axes = node.inputs, attrs_of(node, at.SumAttrs).axes
        remaining = [LAST.index(d) for d in range(4) if d not in axes and source.type.shape[d] != 1]
        if remaining != sorted(remaining):
            return False
        total = b.sum_axes(self.channels_last[source], [LAST.index(d) for d in axes])
        self.original[node] = b.reshape(total, node.type.shape)
        return True

    RULES: ClassVar[Mapping[str, Callable[[ViewPropagation, Node], bool]]] = {
        "permute": permute,
        "reshape": reshape,
        "expand": expand,
        "gather": gather,
        "sum": sum,
    }
