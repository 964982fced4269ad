"""The table of the names `torch.X`, which are looked up as `ws.X`."""

from __future__ import annotations

from wholestep.interop.name_tables import DEVICE, PRECISION, RANKS, NameTable, paths

_LINES = "wholestep.interop.torch.functions"  # module of functions that are short compositions of ours

_NOT_COMPLEX = "there are no complex numbers here: keep real and imaginary parts in two tensors"
_NOT_QUANTISED = (
    "ws.nn.quantize(model) and ws.nn.fake_quantize compute with int8 values, and ws.export_onnx writes them"
)
_NOT_SPARSE = "tensors are dense here; rows by index are ws.take and ws.scatter_add"
_DECIDES = "the compiler chooses kernels for the whole step; ws.build_session(...).report() says what it chose"
_AFTER = "a value exists only after a step: make it an output, or keep(name) it and read session.get(name)"
_IN_NUMPY = "it is not here; of data compute it with NumPy beforehand, of weights after session.get(name)"
_MODE = "nothing to write: session.step trains, predict and evaluate do not"
_SEED = "write ws.manual_seed(0) for the process, or seed=0 to ws.fit and ws.build_session for one network"
_THREADS = "threads belong to the session: ws.build_session(..., threads=2), ws.fit(..., threads=2)"
_WINDOW = "make it with NumPy once: it is data, np.hanning(n) and the like"
_SHAPE = "what a shape is is known while the program is recorded: ask x.shape and x.dtype in Python"

# Other names of our functions, of `torch` as well as of its tensors.
ALIASES = {
    **paths(
        "absolute=abs arccos=acos arccosh=acosh arcsin=asin arcsinh=asinh arctan=atan arctan2=atan2 arctanh=atanh "
        "bitwise_left_shift=left_shift bitwise_right_shift=right_shift clamp=clip detach=stop_gradient fix=trunc "
        "float_power=pow fmax=maximum fmin=minimum mm=matmul moveaxis=movedim mv=matmul ravel=flatten reciprocal=recip "
        "remainder=mod sgn=sign slice_scatter=scatter_slice split_with_sizes=split swapaxes=transpose "
        "swapdims=transpose take_along_dim=take_along_axis tile=repeat"
    ),
    **paths("hardshrink prelu", "ws.nn.functional."),
    **paths(
        "clone=identity divide=div greater=gt greater_equal=ge less=lt less_equal=le multiply=mul negative=neg "
        "not_equal=ne positive=identity scatter scatter_reduce select_scatter subtract=sub true_divide=div",
        f"{_LINES}:",
    ),
}

TORCH = NameTable(
    theirs="torch",
    ours="ws",
    same={
        **ALIASES,
        **paths(
            "add addcdiv addcmul addmm amax amin argmax baddbmm bernoulli bmm broadcast_to cdist clamp_max clamp_min cosh "
            "deg2rad diag_embed diagonal dist div dot eq erfc fmod frac ge ger=outer gt heaviside hstack hypot "
            "index_select inner is_floating_point le logaddexp logical_and logical_not logical_or logit lt max mean min "
            "mul nan_to_num narrow ne neg numel outer rad2deg rand_like randn_like repeat_interleave row_stack=vstack "
            "select sinh std_mean sub sum t tan tensordot trace var_mean vdot=dot vstack xlogy",
            f"{_LINES}:",
        ),
        **paths("cat=concat concatenate=concat double=float64 dropout_=dropout float=float32 half=float16 int=int32 long=int64"),
        **paths("binary_cross_entropy_with_logits celu pairwise_distance selu", "ws.nn.functional."),
        **paths("bool=boolean dtype=DType", "wholestep.compiler.ir.types:"),
        **paths("inf nan pi e", "math:"),
        "OutOfMemoryError": "ws.errors.OutOfMemoryError",
        "utils": "wholestep.interop.names:UTILS",
    },
    say={
        # training
        "autograd": "gradients are recorded: ws.gradients(loss, params), which nests; own rules are ws.custom_gradient",
        "compile": "nothing to write: every step is compiled as a whole",
        "compiler": "nothing to write: every step is compiled as a whole; ws.CompileOptions has the switches",
        "jit": "nothing to write: every step is compiled as a whole; ws.save_plan keeps what was compiled",
        "export": "ws.save_plan(...) keeps a compiled plan, model.save(...) the weights",
        "onnx": "ws.export_onnx(model, 'net.onnx', example=x) writes a network, ws.from_onnx('net.onnx') reads one",
        "fx": "ws.Graph is the recorded program; print(graph.to_ir()) shows it",
        "func": "ws.gradients(loss, params) nests; a module with other weights is ws.nn.functional_call(model, weights, x)",
        "vmap": "write the axis, every function broadcasts; a function of one row is a loop: _, ys = ws.scan(lambda c, x: (c, f(x)), 0.0, xs)",
        "gradient": "ws.gradients(loss, params) are derivatives; differences of neighbours are x[1:] - x[:-1]",
        "cond": "both sides are computed, ws.where(condition, a, b) chooses",
        "save": "write model.save('model.safetensors'); a whole run is ws.save_checkpoint",
        "load": "write model.load('model.safetensors'); torch's own files too, model.load('model.pt')",
        "GradScaler": "float16 has its own: ws.fit(..., precision='float16', loss_scale=ws.LossScale())",
        "cuda": f"{DEVICE}; `wholestep doctor` says whether there is a GPU",
        "get_default_dtype": "layers are float32 unless they are told: ws.nn.Linear(3, 4, dtype='float64')",
        "distributed": RANKS,
        "multiprocessing": f"threads=2 of ws.fit says how many cores a process takes; {RANKS}",
        "profiler": "ws.Profiler() is a callback, session.profile() measures kernels",
        "hub": "models are in ws.models; weights of others load by name: model.load_state_dict(...)",
        "distributions": "write the formula: mean + std * ws.random_normal(x, x.shape), and its log-density",
        "testing": "ws.gradients has an interpreter beside it: ws.build_session(..., device='reference')",
        "set_printoptions": "tensors have no values to print while the program is recorded",
        # tensors
        "F": "write: from wholestep.nn import functional as F",
        "scalar_tensor": "a constant inside forward is ws.constant(value)",
        "frombuffer": "data are NumPy arrays: np.frombuffer(...)",
        "from_file": "data are NumPy arrays: np.memmap(...)",
        "from_dlpack": "objects of DLPack are data as they are; an array of one is np.from_dlpack(x)",
        "to_dlpack": "read it as an array first: session.get(name)",
        "is_tensor": "write isinstance(x, ws.Tensor)",
        "empty_like": "every tensor has a value: ws.zeros_like(x)",
        "Size": "a shape is a tuple: x.shape",
        "newaxis": "write x[:, None]",
        "rand": "random numbers belong to a graph: ws.random_uniform(x, shape), x a tensor of it",
        "randn": "random numbers belong to a graph: ws.random_normal(x, shape), x a tensor of it",
        "normal": "random numbers belong to a graph: ws.random_normal(x, shape, mean, std)",
        "randint": "random numbers belong to a graph: ws.random_integers(x, shape, low, high), x a tensor of it",
        "randint_like": "write ws.random_integers(x, x.shape, low, high)",
        "randperm": "orders belong to the data: ws.DataLoader(..., shuffle=True), or np.random.permutation(n)",
        "multinomial": "draw by Gumbel: (log_p - ws.log(-ws.log(ws.random_uniform(log_p, log_p.shape)))).argmax(-1)",
        "index_reduce": "sums are ws.scatter_add(updates, index, size)",
        "put": "write ws.where(mask, value, x)",
        "masked_select": "how many elements are left is not known beforehand; write ws.where(mask, x, 0.0)",
        "unique": "how many there are is not known beforehand; of data: np.unique(y, return_inverse=True)",
        "unique_consecutive": "how many there are is not known beforehand; of data: np.unique(...)",
        "msort": "write ws.sort(x, 0)",
        "kthvalue": "write ws.sort(x)[..., k - 1]",
        "median": "write ws.sort(x)[..., (n - 1) // 2]",
        "mode": "it is not here; of data: np.bincount(x).argmax()",
        "quantile": "it is not here; of data: np.quantile(x, q); the loss is ws.losses.quantile_loss",
        "aminmax": "write x.min(axis), x.max(axis)",
        "nanmean": "write ws.where(ws.isnan(x), 0.0, x).sum() / (~ws.isnan(x)).astype('float32').sum()",
        "nansum": "write ws.where(ws.isnan(x), 0.0, x).sum()",
        "nanmedian": "it is not here; of data: np.nanmedian(x)",
        "nanquantile": "it is not here; of data: np.nanquantile(x, q)",
        "equal": "write ws.all(x == y)",
        "allclose": "write ws.all(ws.abs(x - y) <= 1e-6); of arrays: np.allclose(a, b)",
        "isclose": "write ws.abs(x - y) <= 1e-6",
        "isin": "write ws.any(x[..., None] == values, axis=-1)",
        "isposinf": "write x == float('inf')",
        "isneginf": "write x == float('-inf')",
        "signbit": "write x < 0",
        "copysign": "write ws.abs(x) * ws.where(y < 0, -1.0, 1.0)",
        "rsub": "write y - x",
        "ldexp": "write x * ws.exp2(n)",
        "logaddexp2": "write ws.log2(ws.exp2(x) + ws.exp2(y))",
        "diff": "write x[1:] - x[:-1]",
        "cross": "write it from a[..., 0] ... b[..., 2] and ws.stack(..., axis=-1)",
        "kron": "write ws.einsum('ij,kl->ikjl', a, b) and reshape it",
        "block_diag": "pad each block, ws.pad(x, amounts), and add them",
        "chain_matmul": "write a @ b @ c",
        "matrix_power": "write a @ a",
        "addmv": "write x + a @ v",
        "addr": "write x + ws.outer(a, b)",
        "addbmm": "write x + (a @ b).sum(0)",
        "bilinear": "write ws.einsum('bi,oij,bj->bo', x, w, y)",
        "diag": "a vector as a matrix is ws.diag_embed(x), the diagonal of one ws.diagonal(x)",
        "diagflat": "write ws.diag_embed(x.reshape(-1))",
        "tril_indices": "write ws.tril(x), or the indices with np.tril_indices(n)",
        "triu_indices": "write ws.triu(x), or the indices with np.triu_indices(n)",
        "combinations": "make the index pairs with NumPy and take them: ws.take(x, pairs)",
        "broadcast_shapes": "of numbers: np.broadcast_shapes(a, b)",
        "while_loop": "a loop of known length is ws.scan(step, start, xs)",
        "broadcast_tensors": "nothing to write: shapes broadcast",
        "atleast_1d": "write x.reshape(1)",
        "atleast_2d": "write x[None]",
        "atleast_3d": "write x[:, :, None]",
        "column_stack": "write ws.stack(vectors, axis=1)",
        "dstack": "write ws.concat(tensors, axis=2)",
        "hsplit": "write ws.split(x, sizes, axis=1)",
        "vsplit": "write ws.split(x, sizes, axis=0)",
        "dsplit": "write ws.split(x, sizes, axis=2)",
        "tensor_split": "write ws.split(x, sizes, axis) or ws.chunk(x, n, axis)",
        "fliplr": "write ws.flip(x, 1)",
        "flipud": "write ws.flip(x, 0)",
        "rot90": "write ws.flip(x.transpose(-1, -2), -2)",
        "fill": "write ws.full_like(x, value)",
        "range": "write ws.arange(n), which leaves out the end",
        "logspace": "write 10.0 ** ws.linspace(start, stop, steps)",
        "vander": "write x[:, None] ** ws.arange(n, 'float32')",
        "renorm": "write x * ws.clip(limit / ws.norm(x, axis=1, keepdims=True), max=1.0)",
        "threshold": "write ws.where(x > threshold, x, value), or ws.nn.functional.threshold",
        "rrelu": "write ws.leaky_relu(x, slope)",
        "cov": "write d.T @ d / (n - 1), d = x - x.mean(0)",
        "corrcoef": "write d.T @ d / n, d = (x - x.mean(0)) / ws.std(x, 0, correction=0)",
        "pdist": "write ws.cdist(x, x)",
        "convolution": "write ws.conv2d, ws.conv1d",
        "conv_tbc": "write ws.conv1d(x.permute(1, 2, 0), w)",
        "lstm": "the layer is ws.nn.LSTM",
        "gru": "the layer is ws.nn.GRU",
        "feature_dropout": "the layer drops whole channels: multiply by ws.dropout(ws.ones_like(x[:, :, :1, :1]), p)",
        "embedding": "write ws.take(weight, tokens), or ws.nn.functional.embedding(tokens, weight)",
        "embedding_bag": "write ws.take(table, tokens).sum(1)",
        "finfo": "of NumPy's dtypes: np.finfo('float32')",
        "iinfo": "of NumPy's dtypes: np.iinfo('int32')",
        "unravel_index": "write i // columns and i % columns of arrays; of tensors ws.floor_divide and ws.mod",
        "zero_": "tensors are never changed in place: write x = ws.zeros_like(x)",
        "resize_as_": "tensors are never changed in place: write x = x.reshape(y.shape)",
        "resize_as_sparse_": "tensors are dense, and never changed in place: write x = x.reshape(y.shape)",
        "embedding_renorm_": "write rows * ws.clip(limit / ws.norm(rows, axis=1, keepdims=True), max=1.0), rows = ws.take(weight, tokens)",
        "strided": "tensors have no memory of their own",
        "version": "write ws.__version__",
    },
    groups=(
        ("no_grad enable_grad inference_mode set_grad_enabled is_grad_enabled is_inference_mode_enabled is_inference", _MODE),
        ("seed initial_seed get_rng_state set_rng_state random Generator default_generator", _SEED),
        ("*autocast* amp set_float32_matmul_precision get_float32_matmul_precision", PRECISION),
        ("device get_default_device set_default_device cpu mps accelerator get_device", DEVICE),
        ("set_num_threads get_num_threads set_num_interop_threads get_num_interop_threads", _THREADS),
        ("set_default_dtype set_default_tensor_type", "say it to the model: model.astype('float64')"),
        ("tensor as_tensor asarray from_numpy", "data are NumPy arrays, as they are; a constant inside forward is ws.constant(value)"),
        ("empty empty_permuted empty_strided", "every tensor has a value: ws.zeros(shape)"),
        ("poisson binomial", "it is not drawn inside a step; draw it with NumPy and pass it as an input"),
        ("nonzero argwhere", "how many there are is not known beforehand; write ws.where(condition, a, b)"),
        ("meshgrid cartesian_prod", "write a[:, None] and b[None, :]: shapes broadcast"),
        ("alpha_dropout feature_alpha_dropout native_dropout", "write ws.dropout(x, p)"),
        ("sqrt_ exp_ *_copy", "tensors are never changed in place and have no memory of their own: write the function itself"),
        ("*_", "tensors are never changed in place: write x = ws.{plain}(x)"),
        ("angle", "of a pair of real and imaginary parts: ws.atan2(imaginary, real)"),
        ("polygamma mvlgamma i0 igamma* nextafter frexp gcd lcm special special_*", _IN_NUMPY),
        (
            "logdet inverse cholesky_* triangular_solve linalg",
            "write ws.det, ws.slogdet, ws.inv, ws.solve, ws.cholesky or ws.solve_triangular, of up to 32 rows",
        ),
        (
            "pinverse qr svd* eig* lobpcg lstsq lu lu_* matrix_exp matrix_rank orgqr "
            "ormqr geqrf norm_except_dim nuclear_norm frobenius_norm pca_lowrank symeig",
            "of linear algebra there are products, ws.solve, ws.cholesky and ws.det; compute it with np.linalg outside of the step",
        ),
        ("fft stft istft", "a complex number is a pair of tensors here: real, imaginary = ws.rfft(x), ws.irfft, ws.dft; of windows: ws.windows_along"),
        ("*_window signal", _WINDOW),
        ("complex* view_as_complex view_as_real real imag conj* polar is_complex is_conj resolve_* isreal adjoint cfloat cdouble chalf", _NOT_COMPLEX),
        ("q_* qint* quint* quantize_* quantized_* quantization dequantize fake_quantize_* int_repr choose_qparams* fbgemm_* fused_moving_avg* ao per_*_affine* per_tensor* per_channel* qscheme empty_quantized", _NOT_QUANTISED),
        ("sparse sparse_* spmm dsmm hsmm smm sspaddmm saddmm hspmm nonzero_static masked nested", _NOT_SPARSE),
        ("float8_* float4_* int16 int8 uint16 uint32 uint64 short", "dtypes are float32, float64, bfloat16, float16, int32, int64, uint8 and bool"),
        ("cudnn_* mkldnn_* miopen_* native_* is_vulkan_available backends", _DECIDES),
        ("batch_norm_*", "ws.batch_norm and ws.nn.BatchNorm2d do all of it"),
        ("*_cell", "cells are written with ws.scan; whole layers are ws.nn.LSTM, ws.nn.GRU, ws.nn.RNN"),
        ("rnn_*", "the layer is ws.nn.RNN"),
        ("as_strided* slice_* unfold_copy diagonal_scatter unsafe_* channel_shuffle", "write x[...] with slices, x.reshape(...) and x.permute(...)"),
        ("grid_sampler* affine_grid_generator", "write ws.grid_sample(x, grid), ws.affine_grid(theta, size)"),
        ("trapz trapezoid cumulative_trapezoid", "write ((y[1:] + y[:-1]) * dx / 2).sum()"),
        ("is_nonzero is_same_size is_signed is_neg is_distributed can_cast promote_types result_type", _SHAPE),
        ("*Tensor", "tensors are made by functions: ws.zeros(shape, dtype='float32'), ws.constant(value)"),
        ("*deterministic*", "nothing to write: the same seed gives the same bits, with any number of threads"),
        ("is_anomaly_* set_anomaly_*", "ws.fit(..., nonfinite='raise') names the step, the layer and the line"),
        ("adaptive_* avg_pool* max_pool* conv_transpose* conv3d pixel_* instance_norm", "the layers are in ws.nn; ws.conv2d, ws.max_pool2d, ws.avg_pool2d are functions"),
        ("cosine_embedding_loss ctc_loss hinge_embedding_loss kl_div margin_ranking_loss poisson_nll_loss triplet_margin_loss", "losses are in ws.losses, functions under torch's names in ws.nn.functional"),
    ),
    differs={
        "bincount": "ws.bincount(x, size) is told how many there are to count",
        "gather": "ws.gather is numpy.take; torch's gather is ws.take_along_axis(x, index, axis)",
        "layer_norm": "ws.layer_norm(x, weight, bias, eps=..., axis=-1) says axes; ws.nn.functional.layer_norm has torch's arguments",
        "rms_norm": "ws.rms_norm(x, weight, eps=..., axis=-1) says axes; ws.nn.functional.rms_norm has torch's arguments",
        "scatter_add": "ws.scatter_add(updates, index, size) adds to zeros: write x + ws.scatter_add(updates, index, x.shape[0])",
        "sort": "ws.sort gives the values alone, ws.argsort the indices",
        "take": "ws.take is numpy.take along an axis; torch's is ws.take(x.reshape(-1), index)",
        "batch_norm": "ws.batch_norm(x, weight, bias, running_mean, running_var) has another order; ws.nn.functional.batch_norm has torch's",
        "Graph": "ws.Graph is what a program is recorded in, torch's is an inside of its compiler",
    },
)  # fmt: skip
