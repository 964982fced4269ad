"""Tables of attributes and methods of torch's tensors, modules, parameters and results."""

from __future__ import annotations

from wholestep.interop.name_tables import DEVICE, MODE, NameTable, paths
from wholestep.interop.torch.names.functions import ALIASES

_LINES = "wholestep.interop.torch.functions"
_TENSOR, _MODULE = f"{_LINES}.tensor_methods", f"{_LINES}.module_methods"

_IN_PLACE = "tensors are never changed in place; a state takes a new value with g.update(state, value)"
_TRAINED = "parameters (g.parameter) are trained, inputs and states are not; ws.stop_gradient(x) cuts a path"
_AFTER = "a value exists only after a step. Make it an output, or keep(name) it and read session.get(name)"
_HALF = "leave the model as it is and say precision='bfloat16' to ws.fit or ws.build_session"
_HOOK = "ws.fit(..., observer=ws.ConsoleObserver()) sees what every layer gives; tensor.keep(name) keeps one value"

# functions of `ws` that take the tensor as their first argument
_FUNCTIONS = (
    "argmin all any cholesky det slogdet ceil chunk clip cosine_similarity count_nonzero cumsum dropout einsum erf expm1 flatten flip floor "
    "floor_divide gelu isfinite isinf isnan lerp log10 log1p log_softmax logical_xor logsumexp masked_fill matmul "
    "maximum minimum movedim norm normalize pow repeat roll round rsqrt sign silu softmax split square squeeze std "
    "stop_gradient tril triu trunc unbind unflatten unsqueeze var zeros_like ones_like full_like swiglu "
    "atan prod cumprod cummax cummin logcumsumexp index_add index_copy index_fill index_put masked_scatter bitwise_and "
    "bitwise_or bitwise_xor bitwise_not acos acosh asin asinh atan2 atanh sinc digamma erfinv lgamma histc argsort topk "
    "unfold=windows_along"
)
_LINES_TOO = (
    "sub div neg eq ne lt le gt ge logical_and logical_not logical_or tan sinh cosh erfc logit xlogy logaddexp hypot "
    "deg2rad rad2deg frac fmod heaviside clamp_min clamp_max nan_to_num addcmul addcdiv bmm dot outer inner addmm "
    "baddbmm tensordot dist amax amin var_mean std_mean t index_select select narrow repeat_interleave diagonal "
    "diag_embed trace numel rand_like randn_like bernoulli is_floating_point contiguous=identity nelement=numel"
)

TENSORS = NameTable(
    theirs="torch.Tensor",
    ours="a tensor",
    same={
        **ALIASES,
        **paths(_FUNCTIONS),
        **paths(_LINES_TOO, f"{_LINES}:"),
        **paths(
            "bool=to_bool dim double=to_double expand_as float=to_float gather=pick_along half=to_half int=to_int "
            "long=to_long ndimension=dim new_full new_ones new_zeros reshape_as=view_as size to type=to type_as=to view_as "
            "where=where_",
            f"{_TENSOR}:",
        ),
        "view": "wholestep.compiler.frontend.tensor:Tensor.reshape",
    },
    say={
        "backward": "gradients are recorded, ws.gradients(loss, params); a session takes those of the first output itself",
        "grad": "ask for it while recording: grads = ws.gradients(loss, params)",
        "retrieve": "keep the tensor, tensor.keep(), and read session.get(tensor) after session.step",
        "data": "a tensor is its value; without a gradient it is ws.stop_gradient(x)",
        "retain_grad": "ask for it while recording: grads = ws.gradients(loss, [x])",
        "grad_fn": "x.node is what was recorded",
        "scatter_add": "write x + ws.scatter_add(updates, index, size)",
        "sort": "ws.sort(x, axis) gives the values alone, ws.argsort(x, axis) the indices",
        "bfloat16": "write x.astype('bfloat16')",
        "byte": "write x.astype('uint8')",
        "diag": "a vector as a matrix is x.diag_embed(), the diagonal of one x.diagonal()",
        "bincount": "write ws.bincount(x, size)",
        "register_hook": _HOOK,
        "share_memory_": "ranks are processes with arrays of their own: ws.fit(..., workers=ws.Workers(4))",
        "set": "give the value when the tensor is made: g.named_tensor(name, value); later, session.set(name, value)",
        "assign": _IN_PLACE,
        "T_": "write x.T",
        "append": "write ws.concat([x, y])",
        "copy": "nothing to write: tensors are never changed",
        "len": "write x.shape[0]",
        "take": "write ws.take(x.reshape(-1), index)",
        "new_tensor": "a constant is ws.constant(value)",
        "new_empty": "write x.new_zeros(shape)",
        "resize": "write x.reshape(...)",
        "fill": "write ws.full_like(x, value)",
        "expand_dims": "write x.unsqueeze(axis)",
        "names": "x.name is its name; sizes have names in x.shape",
        "nbytes": "write x.numel() * x.dtype.itemsize",
    },
    differs={
        "max": "along an axis the values alone; the indices are x.argmax(axis)",
        "min": "along an axis the values alone; the indices are x.argmin(axis)",
    },
    groups=(
        ("item numpy tolist cpu", _AFTER),
        ("requires_grad requires_grad_ is_leaf", _TRAINED),
        ("cuda is_cuda get_device pin_memory is_cpu", DEVICE),
        ("values indices", "x.max(axis) gives the values alone, x.argmax(axis) the indices"),
        ("short char", "write x.astype('int32')"),
        ("stride is_contiguous storage data_ptr", "tensors have no memory of their own"),
        ("H mH", "write x.mT; there are no complex numbers here"),
        ("to_dense is_sparse layout to_sparse* sparse_* coalesce", "tensors are dense here"),
        ("element_size itemsize", "write x.dtype.itemsize"),
        ("*_", _IN_PLACE + "; write x = x.{plain}(...)"),
    ),
)  # fmt: skip

MODULES = NameTable(
    theirs="torch.nn.Module",
    ours="a module",
    same={
        **paths(
            "named_parameters named_buffers buffers named_children modules get_submodule get_parameter requires_grad_ "
            "get_layer double to cpu register_buffer register_parameter add_module float=to_float "
            "register_module=add_module",
            f"{_MODULE}:",
        ),
        "training": "wholestep.nn.module.freezing:BY_ENTRY_POINT",
    },
    say={
        "zero_grad": "gradients live within one step; there is nothing to set to zero",
        "type": "write model.astype('float64')",
        "to_empty": "numbers are made when the model is first used",
        "share_memory": "ranks are processes with weights of their own: ws.fit(..., workers=ws.Workers(4))",
        "extra_repr": "define `options`, which says what stands between the brackets",
        "get_buffer": "write model.named_arrays()[name]",
        "compile": "nothing to write: every step is compiled as a whole. Keras': ws.fit(model, (x, y), loss=..., optimizer=..., metrics=[...])",
        "fit": "write ws.fit(model, (x, y), loss=..., optimizer=..., metrics=[...], epochs=...)",
        "fit_generator": "write ws.fit(model, loader, loss=...): any iterable of (x, y) is data",
        "train_on_batch": "write session = ws.build_session(model, ...); session.step(x=x, labels=y)",
        "test_on_batch": "write model.evaluate(x, y, loss=..., metrics=[...])",
        "predict_on_batch": "write model.predict(x)",
        "train_step": "write a @ws.step: it records a whole step",
        "add_loss": "write the step with @ws.step and add it to the loss",
        "add_weight": "assign it: self.name = ws.nn.Parameter(shape)",
        "add": "write ws.nn.Sequential(*layers), with all of them",
        "build": "layers are told their sizes when they are made",
        "call": "define `forward`",
        "non_trainable_weights": "write model.named_buffers()",
        "get_weights": "write model.state_dict(), arrays by name",
        "set_weights": "write model.load_state_dict(arrays by name)",
        "save_weights": "write model.save('model.safetensors')",
        "load_weights": "write model.load('model.safetensors')",
        "layers": "write model.children(), modules by name",
        "clone": "write copy.deepcopy(model), which has the same weights",
        "requires_grad": "write model.trainable, or parameter.requires_grad",
        "load_model": "build the model, then model.load('model.safetensors')",
        "metrics_names": "model.evaluate gives a dict by name",
        "inputs": "write model.summary(ws.Spec(('batch', 784))), the sizes of a module follow from its data",
        "optimizer": "the optimizer belongs to the session: session.optimizer",
        "configure_optimizers": "give ws.fit optimizer=ws.AdamW(lr=...)",
        "training_step": "write ws.fit(model, (x, y), loss=...), or a @ws.step",
        "dtype": "layers have one each: model.layer.weight.dtype",
        "predict_proba": "write model.predict(x) and take the softmax of it, or loss functions that take raw scores",
        "score": "write model.evaluate(x, y, loss=..., metrics=['accuracy'])",
    },
    differs={
        "children": "a dict of modules by name: iterate over model.children().values(), or named_children()",
        "parameters": "a dict of parameters by name, whose names answer for them: p.numel(), p.requires_grad = False",
        "state_dict": "arrays by name; they are copies",
        "load_state_dict": "takes torch's state_dict as it is, and returns a report of what did not match",
    },
    groups=(
        ("train eval", MODE),
        ("cuda device ipu xpu mtia", DEVICE),
        ("half bfloat16", _HALF),
        ("add_metric log", "give ws.fit metrics=[...]"),
        ("trainable_variables trainable_weights", "write model.parameters()"),
        ("weights variables state", "write model.state_dict()"),
        ("to_json get_config", "a model is its Python class; its values are model.save('model.safetensors')"),
        ("count_params num_parameters", "write sum(p.elements for p in model.parameters().values())"),
        ("register_*hook* register_load_* register_state_*", _HOOK),
        ("set_submodule get_extra_state set_extra_state", "assign it: self.name = module"),
    ),
)  # fmt: skip

PARAMETERS = NameTable(
    theirs="torch.nn.Parameter",
    ours="a parameter",
    same=paths("normal_ uniform_ fill_=constant_ zero_=zeros_ copy_", "ws.nn.init."),
    say={
        "grad": "gradients live within one step: session.gradient_stats(), or ws.gradients(loss, params) in a @ws.step",
        "clone": "write model.state_dict()[name], which is a copy",
        "T": "a parameter is a tensor inside forward; its values are model.state_dict()[name]",
    },
    groups=(
        ("numpy detach cpu item tolist", "write model.state_dict()[name]"),
        ("device cuda to", DEVICE),
        (
            "register_hook register_post_accumulate_grad_hook",
            "gradients live within one step: change them in a @ws.step, between ws.gradients and the optimizer's update",
        ),
        ("assign set_value", "write model.load_state_dict({name: array}, strict=False)"),
        ("sum mean norm std var abs max min", "its values are an array: model.state_dict()[name].{name}()"),
        (
            "*_",
            "say how it begins: ws.nn.init, or give it numbers with model.load_state_dict({name: array}, strict=False)",
        ),
    ),
)

RESULTS = NameTable(
    theirs="a loss",
    ours="the result of a step",
    say={
        "backward": "session.step has computed the gradients and applied the update already; go on with the next step",
        "item": "write result.loss, or float(result)",
        "numpy": "write float(result), or np.asarray(result.loss)",
    },
    groups=(("detach cpu", "write float(result)"),),
)

LOSS_VALUES = NameTable(
    theirs="a loss of arrays",
    ours="a loss of arrays",
    say={
        "backward": "gradients are optimizer.step(model.parameters(), ws.compute_gradients(loss, model)); ws.fit and a @ws.step compute loss, gradients and update in one call",
        "grad": "write ws.compute_gradients(loss, model), arrays by name",
        "numpy": "it is a float already: np.float32(loss)",
        "mean": "it is one number already; reduction='none' gives one for each row",
        "sum": "it is one number already; reduction='sum' adds up rows",
    },
    groups=(
        ("detach cpu", "it is a float already"),
        ("requires_grad requires_grad_ grad_fn", "write ws.compute_gradients(loss, model)"),
    ),
)  # fmt: skip
