"""`keras.utils.X`, `torch.nn.utils.X` and the like: helpers for data and models, wherever people look for them."""

from __future__ import annotations

from wholestep.compat.rows import Names

IMAGES = (
    "read the files with Pillow into one array of (N, C, H, W), np.stack([np.asarray(Image.open(f).resize((64, 64)))"
    ".transpose(2, 0, 1) for f in files]), with classes numbered by folder, and give ws.DataLoader(x, y, "
    "transform=ws.data.Scale(1 / 255)); images that do not fit into memory are a class with __len__ and __getitem__"
)
PADDING = (
    "pad with NumPy: x = np.zeros((len(rows), longest), 'int32'), x[i, : len(row)] = row for each of them; "
    "ws.losses.cross_entropy(..., ignore_index=0) leaves padded labels out"
)
PACKED = "sequences are padded arrays here, longest first or not; the output at the last step of each row is ws.take_along_axis(y, (lengths - 1)[:, None, None], 1)"
WORDS = (
    "number the words with NumPy, vocabulary, ids = np.unique(words, return_inverse=True); arrays of ids that a "
    "tokenizer of another library made are data as they are"
)
WINDOWS = (
    "windows are w = np.lib.stride_tricks.sliding_window_view(series, length + 1), x = w[:, :-1] and y = w[:, -1:]"
)
AUGMENTED = (
    "a transform is a function of a batch and its random numbers: ws.DataLoader(x, y, transform=lambda x, draw: ...), "
    "with draw.uniform() for each row; ws.data.Flip, ws.data.Crop and ws.data.Noise are there"
)
MIXED = (
    "mix in a @ws.step: ws.lerp(ws.flip(x, 0), x, a) with the loss a * ws.losses.cross_entropy(scores, y) + (1 - a) * "
    "ws.losses.cross_entropy(scores, ws.flip(y, 0))"
)
_HESSIAN = "gradients nest: (g,) = ws.gradients(loss, [w]), and a product with v is ws.gradients((g * v).sum(), [w])"

UTILS = Names(
    theirs="keras.utils, keras.models, torchvision, lightning",
    ours="ws.utils",
    say={
        "to_categorical": "not needed: loss='cross_entropy' takes class numbers; one-hot rows are np.eye(classes, dtype='float32')[y]",
        "set_random_seed": "write ws.manual_seed(0); np.random and random have seeds of their own",
        "seed_everything": "write ws.manual_seed(0); np.random and random have seeds of their own",
        "load_model": "a file holds weights, the class stays in your code: build the model, then model.load('model.safetensors')",
        "save_model": "write model.save('model.safetensors'): weights by name; the class stays in your code",
        "clone_model": "write copy.deepcopy(model), which has the same weights; a network with others is built anew",
        "model_to_dot": "ws.export_onnx(model, 'net.onnx', example=x) writes a file that Netron draws; print(model.summary()) is a table",
        "plot_model": "ws.export_onnx(model, 'net.onnx', example=x) writes a file that Netron draws; print(model.summary()) is a table",
        "Progbar": "ws.fit shows one; in a loop of your own ws.Progress() is a callback",
        "Sequence": "write a class with __len__ and __getitem__ for ws.DataLoader, or any iterable of batches",
        "PyDataset": "write a class with __len__ and __getitem__ for ws.DataLoader, or any iterable of batches",
        "normalize": "write x / np.linalg.norm(x, axis=-1, keepdims=True) of arrays, ws.normalize(x) of tensors",
        "split_dataset": "write ws.data.split(data, 0.2), or validation=0.2 of ws.fit",
        "get_file": "nothing is downloaded; give the path of a file that is here: ws.data.read_csv(path)",
        "data": "batches are ws.DataLoader(x, y), samplers and transforms are in ws.data",
        "checkpoint": "memory=0.7 of ws.fit: the planner decides which values are computed again",
        "tensorboard": "write callbacks=ws.TensorBoardLogger('runs/tb')",
        "transforms": AUGMENTED,
        "summary": "write model.summary(ws.Spec(('batch', 784)))",
        "keras": "layers are in ws.nn, losses in ws.losses, and ws.fit is compile and fit in one: docs/guides/from-keras.md",
        "grad": "write ws.gradients(loss, [x]) inside a @ws.step; of a loss of arrays ws.compute_gradients(loss, model)",
        "vjp": "write ws.gradients((y * v).sum(), [x]) inside a @ws.step",
        "jvp": f"forward mode is not here; {_HESSIAN}",
        "hessian": f"{_HESSIAN}; a row of the matrix has v = one unit vector",
        "jacobian": "write ws.stack([ws.gradients(y[i], [x])[0] for i in range(n)]) inside a @ws.step, y a vector of n",
        "jacrev": "write ws.stack([ws.gradients(y[i], [x])[0] for i in range(n)]) inside a @ws.step, y a vector of n",
        "jacfwd": "write ws.stack([ws.gradients(y[i], [x])[0] for i in range(n)]) inside a @ws.step, y a vector of n",
    },
    groups=(
        ("image_dataset_from_directory ImageFolder DatasetFolder ImageDataGenerator load_img img_to_array", IMAGES),
        ("pad_sequence pad_sequences", PADDING),
        ("pack_padded_sequence pad_packed_sequence pack_sequence PackedSequence unpad_sequence unpack_sequence", PACKED),
        ("Tokenizer Vocabulary Vocab TextVectorization build_vocab_from_iterator get_tokenizer text_dataset_from_directory", WORDS),
        ("timeseries_dataset_from_array TimeseriesGenerator sliding_window_view windows", WINDOWS),
        ("MixUp Mixup mixup CutMix Cutmix cutmix", MIXED),
        ("Resize Resizing CenterCrop RandomResizedCrop", "resize before training, with Pillow or np.kron, or in forward: ws.nn.Upsample(size=(32, 32)); " + AUGMENTED),
        ("RandomHorizontalFlip RandomVerticalFlip", "write transform=ws.data.Flip() of ws.DataLoader"),
        ("RandomCrop", "write transform=ws.data.Crop(4) of ws.DataLoader: images are padded by 4 and cut to their size"),
        ("ToTensor PILToTensor", "nothing to write: data are NumPy arrays; bytes become floats by ws.data.Scale(1 / 255)"),
        ("Compose", "write transform=[ws.data.Crop(4), ws.data.Flip()] of ws.DataLoader"),
        ("Rotate Random* ColorJitter Grayscale GaussianBlur AutoAugment RandAugment TrivialAugmentWide AugMix", AUGMENTED),
    ),
)  # fmt: skip

NN_UTILS = Names(
    theirs="torch.nn.utils",
    ours="ws.nn.utils",
    same={
        "weight_norm": "ws.nn.weight_norm",
        "spectral_norm": "ws.nn.spectral_norm",
        "rnn": "wholestep.compat.namespaces:RNN_UTILS",
    },
    say={
        "clip_grad_norm_": "write ws.fit(..., clip_norm=1.0); in a @ws.step ws.optim.clip_by_global_norm(grads, 1.0)",
        "clip_grad_norm": "write ws.fit(..., clip_norm=1.0); in a @ws.step ws.optim.clip_by_global_norm(grads, 1.0)",
        "clip_grad_value_": "write ws.fit(..., clip_value=0.5); in a @ws.step ws.optim.clip_by_value(grads, 0.5)",
        "get_total_norm": "write ws.fit(..., gradient_norm=True); in a @ws.step ws.optim.global_norm(grads)",
        "parameters_to_vector": "write np.concatenate([a.ravel() for a in model.state_dict().values()])",
        "vector_to_parameters": "cut the vector with NumPy and give model.load_state_dict(arrays by name)",
        "parametrizations": "write ws.nn.weight_norm(layer) or ws.nn.spectral_norm(layer)",
        "parametrize": "write the expression in forward, or ws.nn.weight_norm(layer) and ws.nn.spectral_norm(layer)",
        "prune": "multiply by a mask in forward: self.weight * self.mask, the mask a ws.nn.Buffer",
        "invert_permutation": "write np.argsort(order)",
        "stateless": "write ws.nn.functional_call(model, weights, x)",
    },
    groups=(
        ("pad_sequence", PADDING),
        ("pack_padded_sequence pad_packed_sequence pack_sequence PackedSequence unpad_sequence unpack_sequence", PACKED),
    ),
)  # fmt: skip
