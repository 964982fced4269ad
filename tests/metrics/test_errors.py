"""What metrics refuse, by the text a user reads; names, examples, and the edges of each definition."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from wholestep import metrics as M
from wholestep.errors import DTypeError, InputError, OptionError, ShapeError, UnknownNameError, UsageError

SCORES, LABELS = np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 1])
OF_CLASSES = [M.Accuracy, M.TopKAccuracy, M.ConfusionMatrix, M.Precision, M.Recall, M.F1, M.LogLoss, M.Perplexity]
RANKED = [M.RocAuc, M.AveragePrecision]


def one(cls: type[M.Metric], **options: int) -> M.Metric:
    return cls(k=2, **options) if cls is M.TopKAccuracy else cls(**options)  # type: ignore[call-arg]


@pytest.mark.parametrize("cls", [*OF_CLASSES, *RANKED])
def test_labels(cls: type[M.Metric]) -> None:
    with pytest.raises(InputError, match=r"labels are from 0 to 2; received 3 at position 2"):
        one(cls).update(SCORES, [0, 1, 3, 0])
    with pytest.raises(DTypeError, match=r"labels are classes, integers; received floats of shape \(4,\)"):
        one(cls).update(SCORES, LABELS.astype(float))
    with pytest.raises(ShapeError, match=r"scores of shape \(4, 1\) for targets of shape \(4,\).*scores\[:, 0\]"):
        one(cls, axis=1).update(SCORES[:, :1], LABELS)
    with pytest.raises(ShapeError, match=r"prediction of floats of shape \(4, 3\) and a target of integers of"):
        one(cls).update(SCORES, LABELS[:3])
    with pytest.raises(ShapeError, match=r"one number for each row, shape \(4,\); received \(4, 1\)"):
        one(cls).update(SCORES, LABELS, np.ones((4, 1)))


@pytest.mark.parametrize("cls", [M.MSE, M.RMSE, M.MAE, M.R2])
def test_numbers(cls: type[M.Metric]) -> None:
    with pytest.raises(ShapeError, match=r"one shape, with a row for each example; received \(4, 1\) and \(4,\)"):
        cls().update(np.ones((4, 1)), np.ones(4))
    with pytest.raises(ShapeError, match=r"one number for each row, shape \(4,\); received \(3,\)"):
        cls().update(np.ones(4), np.ones(4), np.ones(3))


def test_the_same_errors_inside_the_step_at_the_users_line() -> None:
    g = ws.Graph()
    scores, labels = g.input("scores", ("batch", 3)), g.input("labels", ("batch",), "int32")
    with pytest.raises(DTypeError, match=r"(?s)integers; received floats of shape \(batch,\).*test_errors\.py"):
        M.Accuracy().record(g, scores, g.input("floats", ("batch",)))
    with pytest.raises(OptionError, match=r"one score for each target needs a threshold, and none"):
        M.Accuracy().record(g, g.input("column", ("batch", 1)), labels)
    with pytest.raises(ShapeError, match=r"may be probabilities of classes or binary labels.*axis=-1 for class"):
        M.Accuracy().record(g, scores, g.input("rows", ("batch", 3)))
    with pytest.raises(OptionError, match=r"give the number of classes, classes=10"):
        M.ConfusionMatrix().record(g, labels, labels)
    with pytest.raises(
        OptionError, match=r"stores every score of an epoch, so it needs the number of rows: give it, capacity=len"
    ):
        M.RocAuc().record(g, scores, labels)
    with pytest.raises(ShapeError, match=r"the loss tracker takes the loss, one number"):
        M.LossTracker().record(g, scores, labels)


def test_labels_out_of_range_inside_the_step_change_nothing() -> None:
    g = ws.Graph()
    scores = g.input("x", ("batch", 3)) * g.parameter("w", (3,), init=1.0)
    labels = g.input("labels", ("batch",), "int32")
    for name in ("confusion_matrix", "precision"):
        M.get(name).record(g, scores, labels)
    g.set_outputs([scores.mean()])
    session = ws.build_session(g, batch_size=4)
    with pytest.raises(InputError, match=r"holds indices from 0 to 2; received 3 at position 1"):
        session.step(x=np.zeros((2, 3), np.float32), labels=np.array([0, 3], np.int32))
    assert not session.get("metrics.confusion_matrix.matrix").any()
    np.testing.assert_array_equal(session.get("w"), 1.0)


def test_yes_or_no_needs_a_threshold() -> None:
    with pytest.raises(OptionError, match=r"needs a threshold, and none was given. Give threshold=0.0 for logits"):
        M.Accuracy().update(np.array([0.3, -0.2]), np.array([1, 0]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: M.TopKAccuracy(0), "k must be an integer of at least 1; received 0"),
        (lambda: M.TopKAccuracy(4).update(SCORES, LABELS), r"k=4, and scores of shape \(4, 3\) have fewer classes"),
        (lambda: M.F1(average="samples"), "average must be one of 'macro'.*received 'samples'"),
        (lambda: M.Metric.from_config({"kind": "f1", "mean": "macro"}), "f1 has no option 'mean'; it has: average"),
        (lambda: M.Metric.from_config({"name": "f1"}), "needs a 'kind', e.g. 'accuracy'"),
        (lambda: M.get_all(["accuracy", "acc"]), "two metrics are called 'accuracy'; give one of them another name"),
    ],
)
def test_options(call, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        call()


def test_names() -> None:
    with pytest.raises(UnknownNameError, match=r"no metric 'acuracy'. Did you mean 'accuracy'"):
        M.get("acuracy")
    with pytest.raises(
        UsageError, match=r"a metric is a name, a ws.metrics.Metric or its to_config\(\), or a function .* received 3"
    ):
        M.get(3)  # type: ignore[arg-type]
    assert isinstance(M.get(M.F1), M.F1)
    assert [m.name for m in M.get_all(["acc", {"kind": "f1", "average": "micro"}, M.R2(name="fit")])] == [
        "accuracy",
        "f1",
        "fit",
    ]


def test_merging_needs_the_same_description() -> None:
    with pytest.raises(UsageError, match=r"a metric of the same description"):
        M.F1().merge(M.F1(average="micro"))


@pytest.mark.parametrize("name", [n for n in M.__all__ if n not in ("METRICS", "Metric")])
def test_examples_run(name: str) -> None:
    example = getattr(M, name).__doc__.split("Example: `")[1].split("`")[0]
    assert eval(example, {"ws": ws})  # noqa: S307


# -- the edges of definitions ------------------------------------------------------------------------------------


def test_more_rows_than_room_are_an_error_in_both_forms() -> None:
    metric = M.RocAuc(capacity=3)
    with pytest.raises(InputError, match=r"room for 3 rows and received 4. Make it larger: capacity=4"):
        metric.update([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
    buffers = {"scores": np.zeros(3), "labels": np.zeros(3, np.int32), "rows": np.array(4)}
    with pytest.raises(InputError, match=r"room for 3 rows and received 4"):
        metric.result(buffers)
    assert M.RocAuc().with_capacity(5).examples == 5
    assert metric.with_capacity(5).capacity == 3


def test_weights_come_with_all_batches_or_none() -> None:
    metric = M.AveragePrecision()
    metric.update([0.1, 0.2], [0, 1])
    with pytest.raises(InputError, match=r"all batches have weights or none has; received both"):
        metric.update([0.1, 0.2], [0, 1], [1.0, 2.0])


def test_one_class_alone_has_no_ranking() -> None:
    auc, precision = M.RocAuc(), M.AveragePrecision()
    for metric in (auc, precision):
        metric.update([0.1, 0.2], [0, 0])
    assert np.isnan(auc.compute())
    assert precision.compute() == 0.0
    auc.update([np.nan], [1])
    assert np.isnan(auc.compute())


def test_ties_of_top_k_go_to_the_first_class_and_nan_is_wrong() -> None:
    equal = np.zeros((3, 3))
    metric = M.TopKAccuracy(2)
    metric.update(equal, [0, 1, 2])
    assert metric.correct == 2
    metric.reset()
    metric.update(np.full((3, 3), np.nan), [0, 1, 2])
    assert metric.correct == 0


def test_r2_of_equal_targets_and_of_one_row() -> None:
    metric = M.R2()
    metric.update([1.0], [1.0])
    assert np.isnan(metric.compute())
    metric.update([1.0], [1.0])
    assert metric.compute() == 1.0
    metric.update([2.0], [1.0])
    assert metric.compute() == 0.0


def test_probabilities_as_targets() -> None:
    scores, targets = np.eye(3)[[0, 1, 2, 0]], np.eye(3)[[0, 1, 2, 1]]
    accuracy, log_loss = M.Accuracy(), M.LogLoss()
    accuracy.update(scores, targets)
    log_loss.update(scores, targets)
    by_class = M.LogLoss()
    by_class.update(scores, LABELS)
    assert accuracy.compute() == 0.75
    np.testing.assert_allclose(log_loss.compute(), by_class.compute(), rtol=1e-14)


def test_classes_may_grow_on_arrays() -> None:
    matrix = M.ConfusionMatrix()
    matrix.update(np.array([0, 1]), np.array([0, 1]))
    matrix.update(np.array([2]), np.array([1]))
    np.testing.assert_array_equal(matrix.compute(), [[1, 0, 0], [0, 1, 1], [0, 0, 0]])


def test_perplexity_of_a_lost_model_is_infinite() -> None:
    metric = M.Perplexity()
    metric.update(np.array([[1e4, 0.0]]), np.array([1]))
    assert metric.compute() == np.inf
