"""Mean average precision of object detection, by COCO's definition (https://cocodataset.org/#detection-eval).

A detection matches an object of its class where their boxes overlap by at least a threshold; every object is matched
once, in the order of the detections' scores.  Average precision is the mean, over 101 recalls, of the best precision at
that recall or a higher one; it is averaged over ten thresholds and over classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wholestep.errors import InputError, OptionError

Array = np.ndarray[Any, Any]
Image = Mapping[str, Any]

IOU_THRESHOLDS = tuple(float(t) for t in np.linspace(0.5, 0.95, 10))
RECALLS = np.linspace(0.0, 1.0, 101)
MAX_DETECTIONS = (1, 10, 100)
# Ranges of box areas, in pixels; detections in other ranges are ignored.
AREAS = {"": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
FORMATS = ("xyxy", "xywh")


@dataclass(frozen=True)
class Boxes:
    """The boxes of one image as (x, y, width, height), with labels and areas; detections also have scores."""

    boxes: Array  # (n, 4)
    labels: Array  # (n,)
    areas: Array
    scores: Array
    crowds: Array  # for targets; True: a group, which any number of detections may match

    def of_class(self, label: int) -> Boxes:
        chosen = self.labels == label
        return Boxes(*(array[chosen] for array in vars(self).values()))

    def best(self, count: int) -> Boxes:
        order = np.argsort(-self.scores, kind="stable")[:count]
        return Boxes(*(array[order] for array in vars(self).values()))


@dataclass(frozen=True)
class Matches:
    """The matches of one class in one image, by decreasing score, with the objects of an area range."""

    scores: Array  # (detections,)
    hits: Array  # (thresholds, detections)
    ignored: Array  # matched an ignored object, or matched none and is in another area range
    objects: int  # number of objects that count

    def first(self, count: int) -> Matches:
        return Matches(self.scores[:count], self.hits[:, :count], self.ignored[:, :count], self.objects)


class MeanAveragePrecision:
    """COCO's mean average precision of detected boxes: over IoU thresholds .50:.95, by class, area and number of
    detections.

    Images have different numbers of boxes, so it is computed from arrays, outside of a step: call `update` with
    predictions and `compute` at the end of an epoch.

    Args:
        box_format: "xyxy" for corners, "xywh" for COCO's corner and size.
        iou_thresholds: least overlaps of a matching detection; COCO's ten by default.
        max_detections: limits on the detections per image and class, best scores first; mAP uses the largest.

    Example: `ws.metrics.MeanAveragePrecision(box_format="xywh")`, then
    `metric.update([{"boxes": boxes, "scores": scores, "labels": labels}], [{"boxes": truth, "labels": classes}])` for
    one image and `metric.compute()["map_50"]`.
    """

    def __init__(
        self,
        box_format: str = "xyxy",
        iou_thresholds: Sequence[float] = IOU_THRESHOLDS,
        max_detections: Sequence[int] = MAX_DETECTIONS,
    ) -> None:
        if box_format not in FORMATS:
            raise OptionError(f"box_format={box_format!r}: expected one of {', '.join(map(repr, FORMATS))}.")
        if not len(iou_thresholds) or not all(0 < t <= 1 for t in iou_thresholds):
            raise OptionError(f"iou_thresholds={iou_thresholds!r}: expected numbers above 0 and up to 1.")
        if not len(max_detections) or not all(isinstance(n, int) and n > 0 for n in max_detections):
            raise OptionError(f"max_detections={max_detections!r}: expected positive integers.")
        self.box_format = box_format
        self.thresholds = np.asarray(iou_thresholds, np.float64)
        self.max_detections = tuple(sorted(max_detections))
        self.reset()

    def reset(self) -> None:
        """Discard all images."""
        self._images: list[tuple[Boxes, Boxes]] = []

    def update(self, predictions: Sequence[Image], targets: Sequence[Image]) -> None:
        """Count some images.

        Args:
            predictions: one dict per image: `boxes` (n, 4), `scores` (n,) and `labels` (n,), integers.
            targets: one dict per image: `boxes` (m, 4) and `labels` (m,); `area` (m,), by default that of the box, and
                `iscrowd` (m,), as in COCO's annotations.
        """
        if len(predictions) != len(targets):
            raise InputError(
                f"update takes one dict of predictions and one of targets per image; received {len(predictions)} and "
                f"{len(targets)}."
            )
        self._images += [
            (self._objects("predictions", p, i), self._objects("targets", t, i))
            for i, (p, t) in enumerate(zip(predictions, targets, strict=True))
        ]

    def compute(self) -> dict[str, float | Array]:
        """The results `map`, `map_50`, `map_75`, `map_small` and so on; mean recalls are `mar_1`, `mar_10`, `mar_100`,
        `mar_small`.

        `classes` are the labels of objects and detections, in order, and `map_per_class` their mAP.  A class
        or size without objects has the result NaN.
        """
        classes = sorted({int(c) for both in self._images for objects in both for c in objects.labels})
        most = self.max_detections[-1]
        curves = {
            (area, count): [self._curve(label, area, count) for label in classes]
            for area in AREAS
            for count in (self.max_detections if not area else (most,))
        }
        whole = curves["", most]
        results: dict[str, float | Array] = {"map": _mean([c.precision for c in whole])}
        for percent in (50, 75):
            at = np.isclose(self.thresholds, percent / 100)
            results[f"map_{percent}"] = _mean([c.precision[at] for c in whole])
        for area in list(AREAS)[1:]:
            results[f"map_{area}"] = _mean([c.precision for c in curves[area, most]])
        for count in self.max_detections:
            results[f"mar_{count}"] = _mean([c.recall for c in curves["", count]])
        for area in list(AREAS)[1:]:
            results[f"mar_{area}"] = _mean([c.recall for c in curves[area, most]])
        results["map_per_class"] = np.array([_mean([c.precision]) for c in whole])
        results["classes"] = np.array(classes, np.int64)
        return results

    def _curve(self, label: int, area: str, count: int) -> PrecisionRecall:
        return PrecisionRecall([image.first(count) for image in self._matches(label, area)], len(self.thresholds))

    def _matches(self, label: int, area: str) -> Iterator[Matches]:
        for predicted, target in self._images:
            detections = predicted.of_class(label).best(self.max_detections[-1])
            objects = target.of_class(label)
            if len(detections.labels) or len(objects.labels):
                yield match(detections, objects, AREAS[area], self.thresholds)

    def _objects(self, what: str, image: Image, index: int) -> Boxes:
        where = f"{what}[{index}]"
        needed = ("boxes", "labels", "scores") if what == "predictions" else ("boxes", "labels")
        if not isinstance(image, Mapping) or any(key not in image for key in needed):
            raise InputError(f"{where} is a dict with {', '.join(needed)}; received {image!r}.")
        labels = np.asarray(image["labels"]).reshape(-1)
        count = len(labels)
        boxes = np.asarray(image["boxes"], np.float64).reshape(-1, 4) if count else np.zeros((0, 4))
        if len(boxes) != count or np.shape(image["boxes"])[:1] not in ((count,), ()):
            raise InputError(
                f"{where}: boxes are (n, 4), one for each of the {count} labels; received {np.shape(image['boxes'])}."
            )
        if count and labels.dtype.kind not in "iu":
            raise InputError(f"{where}: labels are integers; received {labels.dtype}. Write labels.astype('int64').")
        if self.box_format == "xyxy":
            boxes = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
        if (boxes[:, 2:] < 0).any() or not np.isfinite(boxes).all():
            raise InputError(
                f"{where}: a box has a negative size or a value that is not finite; box_format={self.box_format!r}, "
                f"the others are {[f for f in FORMATS if f != self.box_format]}."
            )

        def column(key: str, default: Array) -> Array:
            values = np.asarray(image.get(key, default)).reshape(-1)
            if len(values) != count:
                raise InputError(
                    f"{where}: {key} has one value for each of the {count} labels; received {len(values)}."
                )
            return values

        sizes = boxes[:, 2] * boxes[:, 3]
        is_target = what == "targets"
        return Boxes(
            boxes,
            labels,
            column("area", sizes).astype(np.float64) if is_target else sizes,
            column("scores", np.zeros(count)).astype(np.float64),
            column("iscrowd", np.zeros(count, bool)).astype(bool) if is_target else np.zeros(count, bool),
        )


def overlaps(detections: Boxes, objects: Boxes) -> Array:
    """The IoU of every detection with every object, (detections, objects); for a crowd, the fraction of the detection
    inside it.
    """
    a, b = detections.boxes[:, None], objects.boxes[None]
    low = np.maximum(a[..., :2], b[..., :2])
    high = np.minimum(a[..., :2] + a[..., 2:], b[..., :2] + b[..., 2:])
    common = np.prod(np.maximum(high - low, 0.0), axis=-1)
    size, other = np.prod(a[..., 2:], axis=-1), np.prod(b[..., 2:], axis=-1)
    union = np.where(objects.crowds[None], size, size + other - common)
    ious: Array = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return ious


def match(detections: Boxes, objects: Boxes, area: tuple[float, float], thresholds: Array) -> Matches:
    """Match detections, in order of score, to the free object of largest IoU.

    An object that does not count (a crowd, another area) is matched only if no other can be; a crowd repeatedly.
    """
    low, high = area
    outside = (objects.areas < low) | (objects.areas > high)
    order = np.argsort(objects.crowds | outside, kind="stable")  # objects that count come first
    uncounted = (objects.crowds | outside)[order]
    crowds, ious = objects.crowds[order], overlaps(detections, objects)[:, order]
    hits = np.zeros((len(thresholds), len(detections.labels)), bool)
    ignored = np.zeros_like(hits)
    for t, threshold in enumerate(thresholds):
        free = np.ones(len(order), bool)
        for d in range(len(detections.labels)):
            possible = (free | crowds) & (ious[d] >= min(threshold, 1 - 1e-10))
            counted = possible & ~uncounted
            chosen = counted if counted.any() else possible
            if chosen.any():
                # the last one of equal IoU, as in COCO
                best = np.flatnonzero(chosen & (ious[d] == ious[d][chosen].max()))[-1]
                hits[t, d], ignored[t, d], free[best] = True, uncounted[best], False
    far = (detections.areas < low) | (detections.areas > high)
    return Matches(detections.scores, hits, ignored | (~hits & far), int((~uncounted).sum()))


@dataclass(frozen=True)
class PrecisionRecall:
    """Precision and recall of one class over all images."""

    images: Sequence[Matches]
    thresholds: int

    @cached_property
    def objects(self) -> int:
        return sum(image.objects for image in self.images)

    @cached_property
    def _counts(self) -> tuple[Array, Array]:
        """The true and false positives among the 1, 2, ... best detections, (thresholds, detections)."""
        order = np.argsort(-np.concatenate([i.scores for i in self.images]), kind="stable")
        hits = np.concatenate([i.hits for i in self.images], axis=1)[:, order]
        counted = ~np.concatenate([i.ignored for i in self.images], axis=1)[:, order]
        return np.cumsum(hits & counted, axis=1), np.cumsum(~hits & counted, axis=1)

    @cached_property
    def recall(self) -> Array:
        """The recall of all detections at each threshold; NaN without objects."""
        if not self.objects:
            return np.full(self.thresholds, np.nan)
        true, _ = self._counts
        return true[:, -1] / self.objects if true.shape[1] else np.zeros(self.thresholds)

    @cached_property
    def precision(self) -> Array:
        """Average precision at each threshold; NaN without objects."""
        if not self.objects:
            return np.full(self.thresholds, np.nan)
        true, false = self._counts
        precision = true / np.maximum(true + false, 1)
        # the highest precision at this or any higher recall
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        precisions = np.zeros(self.thresholds)
        for t in range(self.thresholds):
            at = np.searchsorted(true[t] / self.objects, RECALLS)
            precisions[t] = np.append(best[t], 0.0)[at].mean()
        return precisions


def _mean(values: Sequence[Array]) -> float:
    """The mean of all values that are not NaN; NaN if there are none."""
    flat = np.concatenate([np.zeros(0), *map(np.ravel, values)])
    flat = flat[~np.isnan(flat)]
    return float(flat.mean()) if flat.size else float("nan")
