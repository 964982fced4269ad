"""Arguments: theirs -> ours.  A word of ours, the first known of several, or what to write."""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compat.rows import EVERY, Only, Say

Row = str | tuple[str, ...] | Only | Say

_DEVICE = "the device belongs to the session: ws.build_session(..., device=...), ws.fit(..., device=...)"
_MODE = "whether a step trains belongs to the entry point (session.step trains, predict and evaluate do not)"
_INIT = "give `init=` an initialiser, e.g. init=ws.init.xavier_uniform()"
_TRAINED = "parameters are trained unless they are frozen: model.freeze('name.*')"
_LAST = "images are (N, C, H, W): transpose the data once, x.transpose(0, 3, 1, 2)"

# For every function and layer that has the word on the right.
EVERYWHERE: Mapping[str, Row] = {
    # axes
    "dim": "axis",
    "dims": "axis",
    "axes": "axis",
    "keepdim": "keepdims",
    "start_dim": "start_axis",
    "end_dim": "end_axis",
    # operands
    "input": ("x", "prediction", "start"),
    "self": "x",
    "tensor": "x",
    "a": "x",
    "other": ("y", "b"),
    "x1": "x",
    "x2": "y",
    "tensors": "tensors",
    "fill_value": "value",
    "target": ("target", "labels"),
    "y_pred": "prediction",
    "y_true": "target",
    "unbiased": "correction",
    "ddof": "correction",
    # sizes of layers
    "in_features": "inputs",
    "out_features": "outputs",
    "in_channels": "inputs",
    "out_channels": "outputs",
    "kernel_size": ("kernel", "window"),
    "pool_size": "window",
    "strides": "stride",
    "dilation_rate": "dilation",
    "num_embeddings": "entries",
    "embedding_dim": "width",
    "input_size": "inputs",
    "hidden_size": "hidden",
    "normalized_shape": ("shape", "width"),
    "num_features": "channels",
    "num_channels": "channels",
    "num_groups": "groups",
    "embed_dim": "width",
    "d_model": "width",
    "num_heads": "heads",
    "nhead": "heads",
    "num_encoder_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "dim_feedforward": "hidden",
    "negative_slope": "slope",
    "use_bias": "bias",
    "rate": "p",
    "num_classes": "classes",
    "count_include_pad": "count_padding",
    "output_size": "size",
    "scale_factor": "scale",
    "upscale_factor": "factor",
    "downscale_factor": "factor",
    "depth_multiplier": "multiplier",
    "beta": ("beta", "delta"),
    # what changes nothing here
    "inplace": Only((EVERY,), ""),
    "device": Only((None, "cpu"), _DEVICE),
    "requires_grad": Only((EVERY,), ""),
    "memory_format": Only((EVERY,), ""),
    "out": Only((None,), "tensors are never changed in place; use what the function returns"),
    "name": Only((EVERY,), ""),
    "trainable": Only((True,), "write model.freeze('name.*')"),
    "training": Only((True,), _MODE),
    # what is written otherwise
    "kernel_initializer": Say(_INIT),
    "bias_initializer": Say("write ws.nn.init.constant_(layer.bias, value) after the layer is made"),
    "kernel_regularizer": "weight_regularizer",
    "embeddings_regularizer": "weight_regularizer",
    "bias_regularizer": Say("biases are left alone: weight_regularizer= is for the weights"),
    "data_format": Only((None, "channels_first"), _LAST),
    "input_shape": Say("layers are told their sizes: ws.nn.Linear(inputs, outputs)"),
    "input_dim": Say("layers are told their sizes: ws.nn.Linear(inputs, outputs)"),
    "units": Say("layers are told their sizes: ws.nn.Linear(inputs, outputs)"),
    "filters": Say("layers are told their sizes: ws.nn.Conv2d(inputs, outputs, kernel)"),
    "activation": Say("an activation is a layer of its own: ws.nn.Sequential(layer, ws.nn.ReLU())"),
    "padding_mode": Only(("zeros",), "pad first: ws.pad(x, ...)"),
    "generator": Only((None,), "random numbers follow from the seed of the session: ws.build_session(..., seed=0)"),
    "reduce": Only((None,), "write reduction='mean', 'sum' or 'none'"),
    "size_average": Only((None,), "write reduction='mean' or 'sum'"),
}  # fmt: skip

# For one function or class, by its own name; these come before the rows above.
KEYWORDS: Mapping[str, Mapping[str, Row]] = {
    "max": {"dim": Say("torch gives values and indices; write x.max(axis) for the values, x.argmax(axis) for the indices")},
    "min": {"dim": Say("torch gives values and indices; write x.min(axis) for the values, ws.argmin(x, axis) for the indices")},
    "gather": {
        "dim": Say("this is numpy.take, whole slices by index; torch's gather is ws.take_along_axis(x, index, axis)"),
    },
    "concat": {"values": "tensors", "arrays": "tensors"},
    "stack": {"arrays": "tensors"},
    "split": {"split_size_or_sections": "sizes", "split_size": "sizes", "num_or_size_splits": "sizes"},
    "softmax": {"_stacklevel": Only((EVERY,), ""), "dtype": Only((None,), "cast first: ws.softmax(x.astype('float32'))")},
    "log_softmax": {"_stacklevel": Only((EVERY,), ""), "dtype": Only((None,), "cast first: ws.log_softmax(x.astype('float32'))")},
    "transpose": {"dim0": "first", "dim1": "second"},
    "permute": {"dims": "order"},
    "roll": {"dims": "axis"},
    "repeat": {"repeats": "times"},
    "norm": {"ord": "p"},
    "Unflatten": {"unflattened_size": "sizes"},
    "take_along_axis": {"indices": "index"},
    "argsort": {"stable": Only((EVERY,), "")},
    "topk": {
        "largest": Only((True,), "of the smallest: values, places = ws.topk(-x, k)"), "sorted": Only((EVERY,), ""),
    },
    "normalize": {"dim": "axis"},
    "pad": {"pad": "amounts", "pad_width": "amounts"},
    "one_hot": {"indices": "index", "tensor": "index", "num_classes": "classes", "depth": "classes"},
    "linspace": {"end": "stop", "num": "steps"},
    "arange": {"end": "stop"},
    "lerp": {"input": "start"},
    "matmul": {"input": "a", "other": "b", "mat2": "b"},
    "dropout": {"training": Only((True,), _MODE), "rate": "p"},
    "attention": {
        "query": "q", "key": "k", "value": "v", "attn_mask": "mask", "is_causal": "causal",
        "dropout_p": "dropout", "enable_gqa": Only((EVERY,), ""),
    },
    "max_pool2d": {
        "dilation": Only((1, (1, 1)), "windows have no gaps"),
        "return_indices": Only((False,), "the indices are not kept"),
    },
    "avg_pool2d": {
        "divisor_override": Only((None,), "scale the result"),
    },
    "Linear": {"units": Say("layers are told both sizes: ws.nn.Linear(inputs, outputs)")},
    "Embedding": {
        "input_dim": "entries", "output_dim": "width",
        "max_norm": Only((None,), "rows are not rescaled"), "norm_type": Only((2.0,), "rows are not rescaled"),
        "scale_grad_by_freq": Only((False,), "gradients are not rescaled"),
        "sparse": Only((EVERY,), ""), "_weight": "init", "embeddings_initializer": Say(_INIT),
        "padding_idx": "padding",
        "mask_zero": Only((False,), "multiply by the mask: e * (tokens != 0)[..., None]"),
    },
    "MaxPool2d": {
        "dilation": Only((1, (1, 1)), "windows have no gaps"),
        "return_indices": Only((False,), "the indices are not kept"),
    },
    "AvgPool2d": {
        "divisor_override": Only((None,), "scale the result"),
    },
    "LayerNorm": {
        "elementwise_affine": Only((True,), "write ws.layer_norm(x, eps=...) in forward"),
        "epsilon": "eps", "axis": Only((-1,), "it is the last axis, or axes"), "center": "bias",
    },
    "RMSNorm": {"elementwise_affine": Only((True,), "write ws.rms_norm(x, eps=...) in forward"), "epsilon": "eps"},
    "GroupNorm": {"affine": Only((True,), "write ws.group_norm(x, groups) in forward"), "epsilon": "eps"},
    "BatchNorm1d": {"epsilon": "eps"},
    "BatchNorm2d": {"epsilon": "eps"},
    "Dropout": {"seed": Say("random numbers follow from the seed of the session: ws.fit(..., seed=0)")},
    "MultiHeadAttention": {
        "batch_first": Only((True,), "the batch comes first: x is (batch, time, width); transpose(0, 1) what is not"),
        "kdim": Only((None,), "memory has the width of x; project it: ws.nn.Linear(kdim, width)"),
        "vdim": Only((None,), "memory has the width of x; project it: ws.nn.Linear(vdim, width)"),
        "add_bias_kv": Only((False,), "there is none"), "add_zero_attn": Only((False,), "there is none"),
        "key_dim": "head_width",
    },
    "LSTM": {"proj_size": Only((0,), "project the result: ws.nn.Linear(hidden, proj_size)"), "units": Say("layers are told both sizes: ws.nn.LSTM(inputs, hidden)")},
    "GRU": {"units": Say("layers are told both sizes: ws.nn.GRU(inputs, hidden)")},
    "RNN": {"units": Say("layers are told both sizes: ws.nn.RNN(inputs, hidden)")},
    "Optimizer": {
        "params": Say("an optimizer is bound where it is used: ws.fit(model, data, optimizer=ws.Adam(lr=...))"),
        "fused": Only((EVERY,), ""), "foreach": Only((EVERY,), ""), "capturable": Only((EVERY,), ""),
        "differentiable": Only((EVERY,), ""), "jit": Only((EVERY,), ""),
        "clipnorm": Say("gradients are clipped by ws.fit(..., clip_norm=1.0), all together"),
        "global_clipnorm": Say("gradients are clipped by ws.fit(..., clip_norm=1.0)"),
        "clipvalue": Say("gradients are clipped by ws.fit(..., clip_value=0.5)"),
        "use_ema": Only((False,), "write ws.optim.EMA(optimizer, decay=0.999)"),
        "ema_momentum": Only((EVERY,), ""), "ema_overwrite_frequency": Only((EVERY,), ""),
        "loss_scale_factor": Only((None,), "float16 has its own: ws.fit(..., loss_scale=ws.LossScale())"),
        "gradient_accumulation_steps": Only((None, 1), "write ws.fit(..., accumulate=4)"),
        "decay": Say("a falling rate is a schedule: ws.fit(..., schedule=ws.schedules.cosine())"),
        "rho": ("rho", "alpha"),
    },
    "DataLoader": {
        "dataset": "data", "num_workers": Only((0,), "batches are made by a thread: prefetch=2"),
        "pin_memory": Only((EVERY,), ""), "persistent_workers": Only((EVERY,), ""), "prefetch_factor": "prefetch",
        "collate_fn": Only((None,), "give transform= a function of a batch of inputs, or arrays that are whole"),
        "batch_sampler": Only((None,), "give sampler= and batch_size="), "worker_init_fn": Only((EVERY,), ""),
        "timeout": Only((EVERY,), ""), "x": "data", "y": "labels",
    },
    "EarlyStopping": {
        "restore_best_weights": "restore_best", "verbose": Only((EVERY,), ""),
        "start_from_epoch": Only((0,), "train that long first: ws.fit(..., epochs=n), then again"),
    },
    "ModelCheckpoint": {
        "filepath": "folder", "dirpath": "folder", "verbose": Only((EVERY,), ""),
        "save_weights_only": Only((False,), "a checkpoint is all of a run; weights alone are model.save('model.safetensors')"),
        "save_freq": Only(("epoch",), "give seconds= for checkpoints inside an epoch"),
        "save_top_k": Only((1,), "the best epoch is kept, and the last ones: last=2"),
        "save_best_only": Only((EVERY,), ""),
    },
    "CSVLogger": {"filename": "path", "separator": Only((",",), "it is a comma"), "append": Only((EVERY,), "")},
    "TensorBoardLogger": {"log_dir": "folder", "save_dir": "folder"},
}  # fmt: skip
