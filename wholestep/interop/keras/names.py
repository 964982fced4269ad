"""Tables of names of Keras (modules, layers, losses, metrics, callbacks), torchmetrics and Lightning."""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.interop.name_tables import CELL, PRECISION, RANKS, NameTable, paths

_IMAGE = "images are changed as data: ws.DataLoader(..., transform=[ws.data.Flip(), ws.data.Crop(4)])"
_TABLE = "prepare data with NumPy beforehand, np.unique(y, return_inverse=True) numbers categories"
_MASK = "write ws.where(mask, x, 0.0), and mask= of ws.nn.MultiHeadAttention"

KERAS = NameTable(
    theirs="keras",
    ours="ws",
    same={
        **paths("Sequential=nn.Sequential Layer=nn.Module Model=nn.Module Loss=losses.Loss Metric=metrics.Metric"),
        **paths("layers=nn optimizers=optim initializers=init"),
        "Initializer": "wholestep.compiler.ir.attrs:Initializer",
    },
    say={
        "Variable": "a trained array is ws.nn.Parameter(shape) in an attribute, another one ws.nn.Buffer(shape)",
        "KerasTensor": "write ws.Tensor",
        "Function": "write a @ws.step, or a class of ws.nn.Module",
        "Operation": "write a function of tensors",
        "constraints": "write the constraint in forward: w / ws.norm(w, axis=0, keepdims=True)",
        "activations": "activations are functions, ws.relu, and layers, ws.nn.ReLU",
        "applications": "models are in ws.models",
        "config": "the device, seed and precision belong to ws.fit and ws.build_session",
        "distribution": RANKS,
        "export": "ws.save_plan keeps a compiled plan, model.save(...) the weights",
        "saving": "write model.save('model.safetensors') and model.load('model.safetensors')",
        "legacy": "write ws.nn and ws.fit",
        "preprocessing": _TABLE,
        "random": "random numbers belong to a graph: ws.random_normal(x, shape), x a tensor of it",
        "tree": "dicts and tuples of arrays are inputs and outputs as they are",
        "visualization": "print(model.summary(...)) and history.plot('run.png')",
        "wrappers": "scikit-learn's interface is wholestep.sklearn",
        "distillation": "call both networks in a @ws.step: docs/guides/your-own-step.md",
        "name_scope": "names follow from attributes; in a graph: with g.scope('name'):",
        "device": "the device belongs to the run: ws.fit(..., device='cuda')",
        "StatelessScope": "a model's numbers are model.state_dict(); a step has its own: @ws.step",
        "SymbolicScope": "a program is recorded by ws.Graph, @ws.step, or the call of a model",
        "version": "write ws.__version__",
    },
    groups=(
        ("Input InputSpec", "layers are told their sizes; what a model takes is inputs=ws.Spec(('batch', 784)) of ws.build_session"),
        ("Regularizer regularizers", "weight decay belongs to the optimizer: ws.AdamW(weight_decay=0.01)"),
        ("Quantizer quantizers", "ws.nn.quantize(model) computes with int8 values, and ws.export_onnx writes them"),
        ("backend ops", "functions of tensors are in ws"),
        ("DTypePolicy dtype_policies FloatDTypePolicy mixed_precision", PRECISION),
        ("RematScope remat", "memory=0.7: the planner decides what is kept and what is computed again; session.report() says it"),
    ),
)  # fmt: skip

KERAS_LAYERS = NameTable(
    theirs="keras.layers",
    ours="ws.nn",
    same=paths("Layer=Module Model=Module LayerNormalization=LayerNorm RMSNormalization=RMSNorm", "ws.nn."),
    say={
        "Dense": "write ws.nn.Linear(inputs, outputs): layers are told both sizes, and activations are layers of their own",
        "EinsumDense": "write ws.einsum(equation, x, self.weight) in forward",
        "Activation": "write the layer itself, ws.nn.ReLU(), or ws.nn.Lambda(ws.relu)",
        "Reshape": "write x.reshape(x.shape[0], ...) in forward, or ws.nn.Unflatten(1, shape)",
        "Permute": "write x.permute(0, 2, 1) in forward",
        "RepeatVector": "write ws.repeat(x[:, None], 1, n, 1)",
        "Masking": _MASK,
        "BatchNormalization": "write ws.nn.BatchNorm1d(channels) or BatchNorm2d(channels); momentum is 1 - Keras' (0.99 -> 0.01), eps 1e-3 -> eps=1e-3",
        "GroupNormalization": "write ws.nn.GroupNorm(groups, channels), channels on axis 1",
        "UnitNormalization": "write ws.normalize(x)",
        "SpectralNormalization": "divide the weight by its norm in forward: w / ws.norm(w)",
        "Normalization": "write ws.data.Normalize of the data, or (x - mean) / std with NumPy",
        "SpatialDropout1D": "write x * ws.dropout(ws.ones_like(x[:, :, :1]), p): whole channels",
        "SpatialDropout2D": "write x * ws.dropout(ws.ones_like(x[:, :, :1, :1]), p): whole channels",
        "SpatialDropout3D": "write x * ws.dropout(ws.ones_like(x[:, :, :1, :1, :1]), p): whole channels",
        "GaussianDropout": "write x * (1 + std * ws.random_normal(x, x.shape)) under ws.by_mode(noisy, x)",
        "GaussianNoise": "write ws.by_mode(x + std * ws.random_normal(x, x.shape), x)",
        "AlphaDropout": "write ws.nn.Dropout(p)",
        "ActivityRegularization": "add it to the loss of a @ws.step",
        "Attention": "write ws.attention(q, k, v)",
        "AdditiveAttention": "write ws.softmax((ws.tanh(q[:, :, None] + k[:, None]) * self.scale).sum(-1)) @ v",
        "GroupQueryAttention": "write ws.nn.MultiHeadAttention(width, heads, kv_heads=2)",
        "Bidirectional": "write ws.nn.LSTM(inputs, hidden, bidirectional=True)",
        "TimeDistributed": "nothing to write: ws.nn.Linear works on the last axis of any shape",
        "SimpleRNN": "write ws.nn.RNN(inputs, hidden, batch_first=True)",
        "StackedRNNCells": "write ws.nn.LSTM(inputs, hidden, num_layers=2)",
        "Concatenate": "write ws.concat([x, y], axis=-1) in forward",
        "concatenate": "write ws.concat([x, y], axis=-1)",
        "Add": "write x + y in forward, or ws.nn.Residual(body)",
        "add": "write x + y",
        "Subtract": "write x - y in forward",
        "subtract": "write x - y",
        "Multiply": "write x * y in forward",
        "multiply": "write x * y",
        "Average": "write (x + y) / 2 in forward",
        "average": "write (x + y) / 2",
        "Maximum": "write ws.maximum(x, y) in forward",
        "maximum": "write ws.maximum(x, y)",
        "Minimum": "write ws.minimum(x, y) in forward",
        "minimum": "write ws.minimum(x, y)",
        "Dot": "write (x * y).sum(-1) in forward",
        "dot": "write (x * y).sum(-1)",
        "GlobalAveragePooling1D": "write x.mean(1) of (batch, time, features), or ws.nn.GlobalAvgPool1d() of (N, C, L)",
        "GlobalAveragePooling2D": "write ws.nn.GlobalAvgPool2d(); images are (N, C, H, W)",
        "GlobalAveragePooling3D": "write ws.nn.GlobalAvgPool3d(); volumes are (N, C, D, H, W)",
        "Wrapper": "write a class of ws.nn.Module that holds the other one",
        "Discretization": "write (x[..., None] >= edges).astype('int32').sum(-1)",
        "CategoryEncoding": "write ws.one_hot(index, classes)",
        "Pipeline": "write ws.nn.Sequential(*layers)",
        "Rescaling": "write x * (1.0 / 255) in forward, or of the data",
    },
    groups=(
        ("Input InputLayer InputSpec", "layers are told their sizes; leave it out"),
        ("GlobalAvgPool?D", "write ws.nn.GlobalAvgPool1d(), GlobalAvgPool2d() or GlobalAvgPool3d(); images are (N, C, H, W)"),
        ("GlobalMaxPool?D GlobalMaxPooling?D", "write ws.nn.GlobalMaxPool1d() or GlobalMaxPool2d(); images are (N, C, H, W)"),
        ("MaxPooling?D MaxPool?D", "write ws.nn.MaxPool1d, MaxPool2d or MaxPool3d(window); images are (N, C, H, W)"),
        ("AveragePooling?D AvgPool?D", "write ws.nn.AvgPool1d, AvgPool2d or AvgPool3d(window); images are (N, C, H, W)"),
        ("AdaptiveAveragePooling?D AdaptiveMaxPooling?D", "write ws.nn.AdaptiveAvgPool2d(size) or AdaptiveMaxPool2d(size); images are (N, C, H, W)"),
        ("Conv?DTranspose Convolution?DTranspose", "write ws.nn.ConvTranspose2d(inputs, outputs, kernel); images are (N, C, H, W)"),
        ("Conv?D Convolution?D", "write ws.nn.Conv1d, Conv2d or Conv3d(inputs, outputs, kernel); images are (N, C, H, W)"),
        ("SeparableConv?D SeparableConvolution?D", "write ws.nn.SeparableConv2d(inputs, outputs, kernel); images are (N, C, H, W)"),
        ("DepthwiseConv?D", "write ws.nn.Conv2d(channels, channels, kernel, groups=channels)"),
        ("ConvLSTM?D", "write ws.scan over ws.conv2d: the gates are one convolution of x and the state"),
        ("UpSampling?D", "write ws.nn.Upsample(scale_factor=2); images are (N, C, H, W)"),
        ("ZeroPadding?D", "write ws.nn.ZeroPad2d(amount), or ws.pad(x, amounts)"),
        ("Cropping?D", "write x[:, :, 1:-1, 1:-1]"),
        ("Random* CenterCrop Resizing MaxNumBoundingBoxes AutoContrast Equalization Solarization AugMix CutMix MixUp Aug* Rand* Mel* STFTSpectrogram", _IMAGE),
        ("Hash* IntegerLookup StringLookup FeatureSpace", _TABLE),
        ("TextVectorization", "write words = ws.data.Vocabulary(texts), then ws.data.Ragged(words.encode(texts), labels)"),
        ("*Cell", CELL),
        ("JaxLayer FlaxLayer TFSMLayer TorchModuleWrapper", "weights of others load by name: model.load_state_dict(...)"),
        ("serialize deserialize", "a model is its Python class; its values are model.save('model.safetensors')"),
        ("ReversibleEmbedding", "tie the weights: self.head.weight = self.embedding.weight"),
    ),
)  # fmt: skip

_SCORES = "'cross_entropy', which takes raw scores: leave the softmax out"

# Names for Keras' loss="..."; Keras' losses take probabilities unless from_logits=True.
LOSS_SUGGESTIONS: Mapping[str, str] = {
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

METRIC_SYNONYMS: Mapping[str, str] = {
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

LOSSES = NameTable(
    theirs="keras.losses, torch.nn",
    ours="ws.losses",
    same=paths("BCELoss BCEWithLogitsLoss CrossEntropyLoss HuberLoss L1Loss MSELoss NLLLoss SmoothL1Loss", "ws.nn."),
    say={
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
    groups=(
        (
            "SparseCategoricalCrossentropy CategoricalCrossentropy",
            "give loss='cross_entropy', which takes raw scores (from_logits=True)",
        ),
    ),
)

METRICS = NameTable(
    theirs="keras.metrics, torchmetrics",
    ours="ws.metrics",
    same=paths(
        "SparseCategoricalAccuracy=Accuracy CategoricalAccuracy=Accuracy BinaryAccuracy=Accuracy MeanSquaredError=MSE "
        "MeanAbsoluteError=MAE RootMeanSquaredError=RMSE F1Score=F1 R2Score=R2 AUROC=RocAuc",
        "ws.metrics.",
    ),
    say={
        "AUC": "write ws.metrics.RocAuc() (curve='ROC') or ws.metrics.AveragePrecision() (curve='PR')",
        "CalibrationError": "write ws.metrics.ECE(), or MCE() for the largest error (norm='max')",
        "MatthewsCorrCoef": "write ws.metrics.MCC()",
        "FBetaScore": "write ws.metrics.FBeta(beta)",
        "ROC": "write ws.metrics.RocCurve()",
        "PearsonCorrCoef": "write ws.metrics.Pearson()",
        "SpearmanCorrCoef": "write ws.metrics.Spearman()",
        "MeanAbsolutePercentageError": "write ws.metrics.MAPE()",
        "PeakSignalNoiseRatio": "write ws.metrics.PSNR()",
        "StructuralSimilarityIndexMeasure": "write ws.metrics.SSIM()",
        "RetrievalHitRate": "write ws.metrics.HitRate()",
        "RetrievalMRR": "write ws.metrics.MRR()",
        "RetrievalNormalizedDCG": "write ws.metrics.NDCG()",
        "MetricCollection": "give several: ws.fit(..., metrics=['accuracy', ws.metrics.F1()])",
        "StatScores": "write ws.metrics.ConfusionMatrix(), which has the counts",
    },
    groups=(
        ("Mean MeanMetric", "metrics are means over examples; a value of your own is an output of the step"),
        ("JaccardIndex MeanIoU", "write ws.metrics.IoU(average='macro'), or average=None for a value per class"),
        ("DiceScore GeneralizedDiceScore", "write ws.metrics.Dice()"),
        ("WordErrorRate CharErrorRate", "write ws.metrics.WER(), or WER(unit='characters')"),
        ("BLEUScore SacreBLEUScore", "write ws.metrics.BLEU()"),
        (
            "Multiclass* Multilabel* BinaryAUROC BinaryF1Score BinaryPrecision BinaryRecall BinaryConfusionMatrix",
            "the shapes of scores and targets say which; write the name without it: ws.metrics.F1(), ws.metrics.IoU()",
        ),
        ("TopKCategoricalAccuracy SparseTopKCategoricalAccuracy", "write ws.metrics.TopKAccuracy(k)"),
    ),
)

CALLBACKS = NameTable(
    theirs="keras.callbacks, lightning.callbacks",
    ours="ws.callbacks",
    same={"TensorBoard": "ws.callbacks.TensorBoardLogger"},
    say={
        "ReduceLROnPlateau": "it is a schedule: ws.fit(..., schedule=ws.schedules.ReduceOnPlateau(None, factor=0.1, patience=3))",
        "TerminateOnNaN": "nothing to write: ws.fit(..., nonfinite='raise') ends such a run and says where",
        "LambdaCallback": "write a class of ws.Callback with the methods you need, def on_epoch_end(self, epoch, logs)",
        "History": "ws.fit returns it",
        "BackupAndRestore": "write ws.fit(..., checkpoint='runs/name', resume=True)",
        "LearningRateMonitor": "nothing to write: lr is in the history and the logs",
        "Timer": "write ws.TimeBudget(seconds)",
        "GradientAccumulationScheduler": "write ws.fit(..., accumulate=4)",
        "StochasticWeightAveraging": "write optimizer=ws.optim.SWA(ws.SGD(lr=0.1))",
        "SwapEMAWeights": "write optimizer=ws.optim.EMA(ws.AdamW()); validation, predict and save have the averages",
        "RemoteMonitor": "write ws.callbacks.HTTPLogger(url)",
    },
    groups=(("ProgbarLogger RichProgressBar", "write ws.Progress(); ws.fit brings one"),),
)
