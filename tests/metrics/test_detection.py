"""Detection mAP against pycocotools, whose figures are stored with the boxes, and against cases computed by hand."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.errors import InputError, OptionError, UsageError

CASES = json.loads((Path(__file__).parents[1] / "golden" / "coco_map.json").read_text())
BOX = [0.0, 0.0, 10.0, 10.0]


def metric_of(case: dict[str, Any], parts: int = 1) -> ws.metrics.MeanAveragePrecision:
    metric = ws.metrics.MeanAveragePrecision(box_format="xywh")
    for part in range(parts):
        metric.update(case["predictions"][part::parts], case["targets"][part::parts])
    return metric


@pytest.mark.parametrize("case", CASES, ids=["three classes", "two classes", "five classes"])
def test_the_figures_are_those_of_pycocotools(case: dict[str, Any]) -> None:
    """Crowds, annotated areas, equal scores, images without objects and without detections."""
    result = metric_of(case).compute()
    for name, expected in case["expected"].items():  # pycocotools has -1 where there is nothing to measure
        assert np.nan_to_num(result[name], nan=-1.0) == pytest.approx(expected, abs=1e-11), name
    np.testing.assert_array_equal(result["classes"], range(case["classes"]))
    assert np.nanmean(result["map_per_class"]) == pytest.approx(result["map"])


@pytest.mark.parametrize("case", CASES)
def test_the_stored_figures_are_still_those_of_pycocotools(case: dict[str, Any]) -> None:
    coco, evaluation = (pytest.importorskip(f"pycocotools.{name}") for name in ("coco", "cocoeval"))
    annotations = [
        {"id": 0, "image_id": i, "category_id": label, "bbox": box, "area": area, "iscrowd": crowd}
        for i, t in enumerate(case["targets"])
        for box, label, area, crowd in zip(t["boxes"], t["labels"], t["area"], t["iscrowd"], strict=True)
    ]
    for number, annotation in enumerate(annotations, 1):
        annotation["id"] = number
    detections = [
        {"image_id": i, "category_id": label, "bbox": box, "score": score}
        for i, p in enumerate(case["predictions"])
        for box, label, score in zip(p["boxes"], p["labels"], p["scores"], strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        images = [{"id": i} for i in range(len(case["targets"]))]
        classes = [{"id": c} for c in range(case["classes"])]
        truth.dataset = {"info": {}, "images": images, "annotations": annotations, "categories": classes}
        truth.createIndex()
        found = evaluation.COCOeval(truth, truth.loadRes(detections), "bbox")
        found.evaluate(), found.accumulate(), found.summarize()
    np.testing.assert_allclose(found.stats, list(case["expected"].values()), atol=1e-11)


def test_images_in_any_parts_are_the_same() -> None:
    """But for the order of equal scores, of which these have none."""
    case = {**CASES[2], "predictions": [dict(p) for p in CASES[2]["predictions"]]}
    for i, image in enumerate(case["predictions"]):
        image["scores"] = [s + 1e-3 * i + 1e-5 * j for j, s in enumerate(image["scores"])]
    whole, parts = (metric_of(case, count).compute() for count in (1, 3))
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], err_msg=name)


def one_image(boxes: list[list[float]], scores: list[float], targets: list[list[float]], **more: Any) -> dict[str, Any]:
    metric = ws.metrics.MeanAveragePrecision()
    predictions = {"boxes": boxes, "scores": scores, "labels": [0] * len(boxes)}
    metric.update([predictions], [{"boxes": targets, "labels": [0] * len(targets), **more}])
    return metric.compute()


def test_by_hand_a_miss_before_a_hit_halves_precision() -> None:
    """The better score is a false positive: precision is 1/2 at every recall."""
    result = one_image([[50, 50, 60, 60], BOX], [0.9, 0.8], [BOX])
    assert (result["map"], result["map_50"], result["mar_100"]) == (0.5, 0.5, 1.0)
    assert result["mar_1"] == 0.0  # the best detection alone finds nothing


def test_by_hand_half_of_the_objects_are_found() -> None:
    """Recall ends at 1/2: of 101 recalls, 0.00 to 0.50, 51 have precision 1."""
    result = one_image([BOX], [0.9], [BOX, [50, 50, 60, 60]])
    assert result["map"] == pytest.approx(51 / 101)
    assert result["mar_100"] == 0.5


def test_by_hand_an_overlap_of_068_counts_at_four_of_ten_thresholds() -> None:
    result = one_image([[0, 0, 10, 6.8]], [0.9], [BOX])  # 68 of 100 square pixels: at .50, .55, .60, .65
    assert (result["map_50"], result["map_75"]) == (1.0, 0.0)
    assert result["map"] == pytest.approx(0.4)


def test_by_hand_a_second_detection_of_an_object_is_wrong() -> None:
    result = one_image([BOX, [50, 50, 60, 60], BOX], [0.9, 0.7, 0.8], [BOX, [50, 50, 60, 60]])
    # Precision by recall: 1 up to 1/2, then 2/3.
    assert result["map"] == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_a_crowd_counts_neither_way() -> None:
    result = one_image([BOX, [1, 1, 9, 9]], [0.9, 0.8], [BOX, [0, 0, 30, 30]], iscrowd=[0, 1])
    assert (result["map"], result["mar_100"]) == (1.0, 1.0)


def test_areas_are_those_of_the_boxes_unless_given() -> None:
    assert one_image([BOX], [0.9], [BOX])["map_small"] == 1.0
    large = one_image([BOX], [0.9], [BOX], area=[100.0**2])
    assert np.isnan(large["map_small"])
    assert large["map_large"] == 1.0


def test_without_objects_there_is_nothing_to_measure() -> None:
    metric = ws.metrics.MeanAveragePrecision()
    assert np.isnan(metric.compute()["map"])
    result = one_image([BOX], [0.9], [])
    assert np.isnan(result["map"])
    assert one_image([], [], [BOX])["map"] == 0.0
    metric.update([{"boxes": [BOX], "scores": [1.0], "labels": [0]}], [{"boxes": [BOX], "labels": [0]}])
    metric.reset()
    assert np.isnan(metric.compute()["map"])


P = {"boxes": [BOX], "scores": [0.5], "labels": [1]}
T = {"boxes": [BOX], "labels": [1]}
MISTAKES = {
    "one dict of predictions and one of targets per image; received 1 and 2": ([P], [T, T]),
    r"predictions\[0\] is a dict with boxes, labels, scores": ([T], [T]),
    r"targets\[0\] is a dict with boxes, labels": ([P], [{"boxes": [BOX]}]),
    r"predictions\[0\]: boxes are \(n, 4\), one for each of the 1 labels": ([{**P, "boxes": [BOX, BOX]}], [T]),
    "scores has one value for each of the 1 labels; received 2": ([{**P, "scores": [0.5, 0.1]}], [T]),
    r"labels are integers; received float64\. Write labels.astype": ([{**P, "labels": [1.0]}], [T]),
    "a box has a negative size": ([P], [{**T, "boxes": [[10.0, 10.0, 5.0, 5.0]]}]),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_in_boxes_are_told(text: str) -> None:
    with pytest.raises(InputError, match=text):
        ws.metrics.MeanAveragePrecision().update(*MISTAKES[text])


def test_a_step_does_not_take_it() -> None:
    with pytest.raises(
        UsageError, match=r"received <.*MeanAveragePrecision.* It counts on arrays: call its update and"
    ):
        ws.metrics.get(ws.metrics.MeanAveragePrecision())


@pytest.mark.parametrize("option", [{"box_format": "cxcywh"}, {"iou_thresholds": [1.5]}, {"max_detections": [0]}])
def test_mistakes_in_options_are_told(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(OptionError, match=f"{name}=.*expected"):
        ws.metrics.MeanAveragePrecision(**option)
