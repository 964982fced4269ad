"""Names of losses, metrics, callbacks, data and models, looked for as `ws.losses.X` and so on; and names as text."""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compat.rows import Names

_SCORES = "'cross_entropy', which takes raw scores: leave the softmax out"

# loss="..." of Keras, whose losses take probabilities unless they are told otherwise
LOSS_WORDS: Mapping[str, str] = {
    "sparse_categorical_crossentropy": f"write {_SCORES}",
    "categorical_crossentropy": f"write {_SCORES}; classes may be numbers or probabilities",
    "binary_crossentropy": "write 'bce', which takes raw scores: leave the sigmoid out; of probabilities 'bce_of_probabilities'",
    "kl_divergence": "write 'kl_div', which takes raw scores",
    "categorical_hinge": "write 'hinge'",
    "mean_absolute_percentage_error": "write a function of (output, target): loss=lambda y, t: ws.abs((t - y) / t).mean()",
    "mean_squared_logarithmic_error": "write a function of (output, target) with ws.log1p",
    "cosine_similarity": "write a function of (output, target): loss=lambda y, t: -ws.cosine_similarity(y, t).mean()",
    "mse_loss_fn": "write 'mse'",
}  # fmt: skip

METRIC_WORDS: Mapping[str, str] = {
    "sparse_categorical_accuracy": "accuracy",
    "categorical_accuracy": "accuracy",
    "binary_accuracy": "accuracy",
    "auc": "roc_auc",
    "mean_squared_error": "mse",
    "mean_absolute_error": "mae",
    "root_mean_squared_error": "rmse",
    "f1_score": "f1",
    "top_k_categorical_accuracy": "top_k_accuracy",
}

LOSSES = Names(
    theirs="keras.losses, torch.nn",
    ours="ws.losses",
    same={
        name: f"ws.nn.{name}"
        for name in (
            [
                "BCELoss",
                "BCEWithLogitsLoss",
                "CrossEntropyLoss",
                "HuberLoss",
                "L1Loss",
                "MSELoss",
                "NLLLoss",
                "SmoothL1Loss",
            ]
        )
    },
    say={
        "SparseCategoricalCrossentropy": "give loss='cross_entropy', which takes raw scores (from_logits=True)",
        "CategoricalCrossentropy": "give loss='cross_entropy', which takes raw scores (from_logits=True)",
        "BinaryCrossentropy": "give loss='bce', which takes raw scores (from_logits=True)",
        "MeanSquaredError": "give loss='mse', or ws.losses.mse",
        "MeanAbsoluteError": "give loss='mae', or ws.losses.mae",
        "KLDivergence": "give loss='kl_div', which takes raw scores",
        "Huber": "give loss='huber', or ws.losses.huber",
        "LogCosh": "give loss='log_cosh', or ws.losses.log_cosh",
        "Hinge": "give loss='hinge', or ws.losses.hinge",
        "CosineSimilarity": "write -ws.cosine_similarity(y, t).mean()",
        "Reduction": "write reduction='mean', 'sum' or 'none'",
    },
)

METRICS = Names(
    theirs="keras.metrics, torchmetrics",
    ours="ws.metrics",
    same={
        "SparseCategoricalAccuracy": "ws.metrics.Accuracy",
        "CategoricalAccuracy": "ws.metrics.Accuracy",
        "BinaryAccuracy": "ws.metrics.Accuracy",
        "MeanSquaredError": "ws.metrics.MSE",
        "MeanAbsoluteError": "ws.metrics.MAE",
        "RootMeanSquaredError": "ws.metrics.RMSE",
        "F1Score": "ws.metrics.F1",
        "R2Score": "ws.metrics.R2",
        "AUROC": "ws.metrics.RocAuc",
    },
    say={
        "AUC": "write ws.metrics.RocAuc() (curve='ROC') or ws.metrics.AveragePrecision() (curve='PR')",
        "Mean": "metrics are means over examples; a value of your own is an output of the step",
        "TopKCategoricalAccuracy": "write ws.metrics.TopKAccuracy(k)",
        "SparseTopKCategoricalAccuracy": "write ws.metrics.TopKAccuracy(k)",
        "MeanMetric": "metrics are means over examples; a value of your own is an output of the step",
    },
)

CALLBACKS = Names(
    theirs="keras.callbacks, lightning.callbacks",
    ours="ws.callbacks",
    same={"TensorBoard": "ws.callbacks.TensorBoardLogger"},
    say={
        "ReduceLROnPlateau": "it is a schedule: ws.fit(..., schedule=ws.schedules.ReduceOnPlateau(None, factor=0.1, patience=3))",
        "TerminateOnNaN": "nothing to write: ws.fit(..., nonfinite='raise') ends such a run and says where",
        "LambdaCallback": "write a class of ws.Callback with the methods you need, def on_epoch_end(self, epoch, logs)",
        "History": "ws.fit returns it",
        "BackupAndRestore": "write ws.fit(..., checkpoint='runs/name', resume=True)",
        "ProgbarLogger": "write ws.Progress(); ws.fit brings one",
        "RichProgressBar": "write ws.Progress(); ws.fit brings one",
        "LearningRateMonitor": "nothing to write: lr is in the history and the logs",
        "Timer": "write ws.TimeBudget(seconds)",
        "GradientAccumulationScheduler": "write ws.fit(..., accumulate=4)",
        "StochasticWeightAveraging": "write optimizer=ws.optim.SWA(ws.SGD(lr=0.1))",
        "SwapEMAWeights": "write optimizer=ws.optim.EMA(ws.AdamW()); validation, predict and save have the averages",
        "RemoteMonitor": "write ws.JSONLinesLogger(path), or a class of ws.Callback",
    },
)

DATA = Names(
    theirs="torch.utils.data",
    ours="ws.data",
    same={"SequentialSampler": "ws.data.Sequential", "RandomSampler": "ws.data.Shuffled"},
    say={
        "Dataset": "write a class with __len__ and __getitem__, or give arrays: ws.DataLoader(x, y)",
        "IterableDataset": "any iterable of batches is data",
        "TensorDataset": "give the arrays themselves: ws.DataLoader(x, y)",
        "ConcatDataset": "write np.concatenate of the arrays",
        "random_split": "write ws.data.split(x, y, ...), or validation=0.1 of ws.fit",
        "WeightedRandomSampler": "write ws.data.Weighted(weights)",
        "SubsetRandomSampler": "write ws.data.Subset(rows)",
        "default_collate": "nothing to write: rows are stacked",
        "train_test_split": "write ws.data.split, or validation=0.2 of ws.fit",
    },
)
