"""The argument names of other libraries: for each our name, several candidates, or a text that says what to write."""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.interop.name_tables import EVERY, MODE, Only, Say

Row = str | tuple[str, ...] | Only | Say

_DEVICE = "the device belongs to the run: ws.fit(..., device='cuda'), ws.build_session(..., device='cuda')"
_INIT = "give `init=` an initialiser, e.g. init=ws.init.xavier_uniform()"
_LAST = "images are (N, C, H, W): transpose the data once, x.transpose(0, 3, 1, 2)"


def _no_effect(names: str) -> dict[str, Row]:
    """Arguments that are accepted with any value, since they have no effect here."""
    return dict.fromkeys(names.split(), Only((EVERY,), ""))


_NOT_RESCALED: Mapping[str, Row] = {  # arguments of embedding tables
    "max_norm": Only((None,), "rows are not rescaled"), "norm_type": Only((2.0,), "rows are not rescaled"),
    "scale_grad_by_freq": Only((False,), "gradients are not rescaled"), **_no_effect("sparse"),
}  # fmt: skip
_ON_ARRAYS = _no_effect("verbose workers use_multiprocessing max_queue_size")  # Keras' predict and evaluate


# Our arguments, and what other libraries call them.
_RENAMED = {
    "axis": "dim dims axes", "keepdims": "keepdim", "start_axis": "start_dim", "end_axis": "end_dim",
    "x": "self tensor a x1", "y": "x2", "value": "fill_value", "prediction": "y_pred", "target": "y_true",
    "correction": "unbiased ddof", "inputs": "in_features in_channels input_size", "outputs": "out_features out_channels",
    "window": "pool_size", "stride": "strides", "dilation": "dilation_rate", "entries": "num_embeddings",
    "hidden": "hidden_size dim_feedforward", "channels": "num_features num_channels", "groups": "num_groups",
    "width": "embedding_dim embed_dim d_model", "heads": "num_heads nhead", "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers", "slope": "negative_slope", "bias": "use_bias", "p": "rate",
    "classes": "num_classes", "count_padding": "count_include_pad", "size": "output_size", "scale": "scale_factor",
    "factor": "upscale_factor downscale_factor", "multiplier": "depth_multiplier",
    "weight_regularizer": "kernel_regularizer embeddings_regularizer",
}  # fmt: skip

# Rows for every function and layer that has the argument on the right.
EVERYWHERE: Mapping[str, Row] = {
    **{theirs: ours for ours, names in _RENAMED.items() for theirs in names.split()},
    "input": ("x", "prediction", "start"), "other": ("y", "b"), "target": ("target", "labels"),
    "kernel_size": ("kernel", "window"), "normalized_shape": ("shape", "width"), "beta": ("beta", "delta"),
    # arguments that have no effect here
    **_no_effect("inplace requires_grad memory_format name"),
    "device": Only((None, "cpu"), _DEVICE),
    "out": Only((None,), "tensors are never changed in place; use what the function returns"),
    "trainable": Only((True,), "write model.freeze('name.*')"),
    "training": Only((True,), MODE),
    # arguments that are written differently here
    "kernel_initializer": Say(_INIT),
    "bias_initializer": Say("write ws.nn.init.constant_(layer.bias, value) after the layer is made"),
    "bias_regularizer": Say("biases are left alone: weight_regularizer= is for the weights"),
    "data_format": Only((None, "channels_first"), _LAST),
    **dict.fromkeys(("input_shape", "input_dim", "units"), Say("layers are told their sizes: ws.nn.Linear(inputs, outputs)")),
    "filters": Say("layers are told their sizes: ws.nn.Conv2d(inputs, outputs, kernel)"),
    "activation": Say("an activation is a layer of its own: ws.nn.Sequential(layer, ws.nn.ReLU())"),
    "padding_mode": Only(("zeros",), "pad first: ws.pad(x, ...)"),
    "generator": Only((None,), "random numbers follow from the seed of the session: ws.build_session(..., seed=0)"),
    "reduce": Only((None,), "write reduction='mean', 'sum' or 'none'"),
    "size_average": Only((None,), "write reduction='mean' or 'sum'"),
}  # fmt: skip

_CSV: Mapping[str, Row] = {  # arguments of pandas.read_csv
    "sep": "delimiter", "filepath_or_buffer": "path",
    "names": Say("write header=False, which calls the columns '0', '1' and so on"),
    "usecols": Say("leave columns out after reading: ws.data.read_frame(path).without('column')"),
    "encoding": Say("files are read as UTF-8: convert others before"),
}  # fmt: skip

# Rows for one function or class, by its name; these are searched before the rows above.
KEYWORDS: Mapping[str, Mapping[str, Row]] = {
    "max": {"dim": Say("torch gives values and indices; write x.max(axis) for the values, x.argmax(axis) for the indices")},
    "min": {"dim": Say("torch gives values and indices; write x.min(axis) for the values, ws.argmin(x, axis) for the indices")},
    "gather": {"dim": Say("this is numpy.take, whole slices by index; torch's gather is ws.take_along_axis(x, index, axis)")},
    "concat": {"values": "tensors", "arrays": "tensors"},
    "stack": {"arrays": "tensors"},
    "read_frame": {
        **_CSV,
        "parse_dates": Say("dates are recognised; ws.data.Encoder(dates=['column'], dayfirst=True) says how they are written"),
        "dayfirst": Say("give it to the encoder: ws.data.Encoder(dayfirst=True)"),
    },
    "read_csv": {**_CSV, "parse_dates": Say("write ws.data.read_frame, which reads dates, text and missing values")},
    "Encoder": {"day_first": "dayfirst", "parse_dates": "dates", "drop": "ignore"},
    "split": {"split_size_or_sections": "sizes", "split_size": "sizes", "num_or_size_splits": "sizes"},
    "softmax": {**_no_effect("_stacklevel"), "dtype": Only((None,), "cast first: ws.softmax(x.astype('float32'))")},
    "log_softmax": {**_no_effect("_stacklevel"), "dtype": Only((None,), "cast first: ws.log_softmax(x.astype('float32'))")},
    "transpose": {"dim0": "first", "dim1": "second"},
    "permute": {"dims": "order"},
    "repeat": {"repeats": "times"},
    "norm": {"ord": "p"},
    "Unflatten": {"unflattened_size": "sizes"},
    "take_along_axis": {"indices": "index"},
    "argsort": _no_effect("stable"),
    "topk": _no_effect("sorted"),
    "scatter": {"value": "src"},
    "scatter_slice": {"src": "source", "end": "stop"},
    "put_along_axis": {"indices": "index", "arr": "x"},
    "pad": {"pad": "amounts", "pad_width": "amounts"},
    "one_hot": {"indices": "index", "tensor": "index", "depth": "classes"},
    "linspace": {"end": "stop", "num": "steps"},
    "arange": {"end": "stop"},
    "lerp": {"input": "start"},
    "matmul": {"input": "a", "other": "b", "mat2": "b"},
    "attention": {
        "query": "q", "key": "k", "value": "v", "attn_mask": "mask", "is_causal": "causal",
        "dropout_p": "dropout", **_no_effect("enable_gqa"),
    },
    "windows_along": {"dimension": "axis"},
    "bucketize": {"boundaries": "edges"},
    "searchsorted": {"sorted_sequence": "edges", "side": Only((None,), "write right=True or False"), "sorter": Only((None,), "sort them first: ws.sort(edges)"), **_no_effect("out_int32")},
    "bincount": {"minlength": "size"},
    "avg_pool2d": {"divisor_override": Only((None,), "scale the result")},
    "AvgPool2d": {"divisor_override": Only((None,), "scale the result")},
    "Linear": {"units": Say("layers are told both sizes: ws.nn.Linear(inputs, outputs)")},
    "Embedding": {
        "input_dim": "entries", "output_dim": "width",
        **_NOT_RESCALED, "_weight": "init", "embeddings_initializer": Say(_INIT), "padding_idx": "padding",
        "mask_zero": Only((False,), "multiply by the mask: e * (tokens != 0)[..., None]"),
    },
    "MaxPool2d": {"return_indices": Only((False,), "write ws.max_pool2d_with_indices in forward")},
    "TransformerEncoder": {
        "encoder_layer": "layer", "num_layers": "layers", **_no_effect("enable_nested_tensor mask_check"),
    },
    "TransformerDecoder": {"decoder_layer": "layer", "num_layers": "layers"},
    "Bilinear": {"in1_features": "first", "in2_features": "second"},
    "ParameterList": {"parameters": "values"},
    "ParameterDict": {"parameters": "values"},
    "EmbeddingBag": {
        **_NOT_RESCALED, "_weight": Only((None,), "model.load_state_dict has numbers"),
        "include_last_offset": Only((False,), "bags are equally long"),
        "padding_idx": Only((None,), "multiply by the mask: ws.nn.Embedding and a mean of your own"),
    },
    "LayerNorm": {
        "elementwise_affine": Only((True,), "write ws.layer_norm(x, eps=...) in forward"),
        "epsilon": "eps", "axis": Only((-1,), "it is the last axis, or axes"), "center": "bias",
    },
    "RMSNorm": {"elementwise_affine": Only((True,), "write ws.rms_norm(x, eps=...) in forward"), "epsilon": "eps"},
    "GroupNorm": {"affine": Only((True,), "write ws.group_norm(x, groups) in forward"), "epsilon": "eps"},
    "_BatchNorm": {"epsilon": "eps"},
    "Dropout": {"seed": Say("random numbers follow from the seed of the session: ws.fit(..., seed=0)")},
    "MultiHeadAttention": {
        "batch_first": Only((True,), "the batch comes first: x is (batch, time, width); transpose(0, 1) what is not"),
        "kdim": Only((None,), "memory has the width of x; project it: ws.nn.Linear(kdim, width)"),
        "vdim": Only((None,), "memory has the width of x; project it: ws.nn.Linear(vdim, width)"),
        "add_bias_kv": Only((False,), "there is none"), "add_zero_attn": Only((False,), "there is none"),
        "key_dim": "head_width",
    },
    "Recurrent": {
        "proj_size": Only((0,), "project the result: ws.nn.Linear(hidden, proj_size)"),
        "units": Say("layers are told both sizes: ws.nn.LSTM(inputs, hidden)"),
    },
    "Optimizer": {
        "params": Say("an optimizer is bound where it is used: ws.fit(model, data, optimizer=ws.Adam(lr=...))"),
        **_no_effect("fused foreach capturable differentiable jit ema_momentum ema_overwrite_frequency"),
        "clipnorm": Say("gradients are clipped by ws.fit(..., clip_norm=1.0), all together"),
        "global_clipnorm": Say("gradients are clipped by ws.fit(..., clip_norm=1.0)"),
        "clipvalue": Say("gradients are clipped by ws.fit(..., clip_value=0.5)"),
        "use_ema": Only((False,), "write ws.optim.EMA(optimizer, decay=0.999)"),
        "loss_scale_factor": Only((None,), "float16 has its own: ws.fit(..., loss_scale=ws.LossScale())"),
        "gradient_accumulation_steps": Only((None, 1), "write ws.fit(..., accumulate=4)"),
        "decay": Say("a falling rate is a schedule: ws.fit(..., schedule=ws.schedules.cosine())"),
        "rho": ("rho", "alpha"),
    },
    "DataLoader": {
        "dataset": "data", "prefetch_factor": "prefetch",
        **_no_effect("pin_memory persistent_workers worker_init_fn timeout multiprocessing_context"),
        "batch_sampler": Only((None,), "give sampler= and batch_size="), "x": "data", "y": "labels",
    },
    "EarlyStopping": {
        "restore_best_weights": "restore_best", **_no_effect("verbose"),
        "start_from_epoch": Only((0,), "train that long first: ws.fit(..., epochs=n), then again"),
    },
    "ModelCheckpoint": {
        "filepath": "folder", "dirpath": "folder", **_no_effect("verbose save_best_only"),
        "save_weights_only": Only((False,), "a checkpoint is all of a run; weights alone are model.save('model.safetensors')"),
        "save_freq": Only(("epoch",), "give seconds= for checkpoints inside an epoch"),
        "save_top_k": Only((1,), "the best epoch is kept, and the last ones: last=2"),
    },
    "CSVLogger": {"filename": "path", "separator": Only((",",), "it is a comma"), **_no_effect("append")},
    "predict": {
        **_ON_ARRAYS, "callbacks": Only((None, ()), "nothing is watched in a prediction"),
        "steps": Only((None,), "all rows are predicted; give fewer of them: model.predict(x[:n])"),
    },
    "evaluate": {
        **_ON_ARRAYS, "callbacks": Only((None, ()), "nothing is watched in an evaluation"),
        "steps": Only((None,), "all rows are measured; give fewer of them: model.evaluate(x[:n], y[:n])"),
        "return_dict": Only((True,), "a dict by name is what it gives: model.evaluate(...)['loss']"),
    },
    "summary": {
        **_no_effect("line_length positions expand_nested show_trainable"),
        "layer_range": Only((None,), "the table has all layers"),
        **dict.fromkeys(("input_size", "input_shape"), Say("write model.summary(ws.Spec(('batch', 784)))")),
    },
    "TensorBoardLogger": {"log_dir": "folder", "save_dir": "folder"},
}  # fmt: skip
