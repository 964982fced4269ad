"""Tables of names of torch's submodules (nn, nn.functional, nn.init, nn.utils, optim, utils.data) and of keras.utils."""

from __future__ import annotations

from wholestep.interop.name_tables import CELL, RANKS, NameTable, paths

_SAME = (
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d avg_pool2d avg_pool3d "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d elu gelu group_norm hardswish interpolate "
    "log_softmax max_pool1d max_pool3d mish one_hot pixel_shuffle pixel_unshuffle relu sigmoid silu softmax "
    "tanh Tensor adaptive_avg_pool3d adaptive_max_pool3d local_response_norm unfold fold grid_sample affine_grid "
    "max_pool2d_with_indices"
)

FUNCTIONAL = NameTable(
    theirs="torch.nn.functional",
    ours="ws.nn.functional",
    same=paths(_SAME),
    say={
        "dropout1d": "write x * ws.dropout(ws.ones_like(x[:, :, :1]), p): whole channels",
        "dropout2d": "write x * ws.dropout(ws.ones_like(x[:, :, :1, :1]), p): whole channels",
        "dropout3d": "write x * ws.dropout(ws.ones_like(x[:, :, :1, :1, :1]), p): whole channels",
        "bilinear": "write ws.einsum('bi,oij,bj->bo', x, weight, y)",
        "kl_div": "ws.losses.kl_div takes raw scores; of logarithms: (target * (ws.log(target) - x)).sum(-1).mean()",
        "ctc_loss": "write ws.losses.ctc_loss(logits, labels, input_lengths, target_lengths)",
        "cosine_embedding_loss": "write ws.losses.cosine_embedding_loss",
        "gaussian_nll_loss": "write ws.losses.gaussian_nll_loss",
        "poisson_nll_loss": "write ws.losses.poisson_nll_loss",
        "triplet_margin_with_distance_loss": "write ws.relu(distance(a, p) - distance(a, n) + margin).mean()",
        "multilabel_margin_loss": "write ws.losses.binary_cross_entropy, one answer for each label",
        "multilabel_soft_margin_loss": "write ws.losses.binary_cross_entropy",
        "soft_margin_loss": "write ws.softplus(-target * x).mean()",
        "linear_cross_entropy": "write ws.losses.cross_entropy(x @ w.T, labels); the compiler fuses it",
        "embedding_bag": "write ws.nn.functional.embedding(x, weight).sum(1)",
        "multi_head_attention_forward": "write ws.attention(q, k, v), or ws.nn.MultiHeadAttention",
        "gumbel_softmax": "write ws.softmax((x - ws.log(-ws.log(ws.random_uniform(x, x.shape)))) / tau)",
        "instance_norm": "write ws.group_norm(x, channels), or ws.nn.InstanceNorm2d(channels)",
        "rrelu": "write ws.leaky_relu(x, slope)",
        "upsample_bilinear": "write ws.interpolate(x, scale_factor=2, mode='bilinear')",
        "pdist": "write ws.cdist(x, x)",
        "conv_tbc": "write ws.conv1d(x.permute(1, 2, 0), w)",
        "grad": "gradients of convolutions are those of ws.gradients(loss, [x])",
    },
    groups=(
        ("alpha_dropout feature_alpha_dropout", "write ws.dropout(x, p)"),
        ("hinge_embedding_loss multi_margin_loss", "write ws.losses.hinge_loss"),
        ("upsample upsample_nearest", "write ws.interpolate(x, scale_factor=2)"),
        ("channel_shuffle native_channel_shuffle", "write x.reshape(n, groups, c // groups, h, w).transpose(1, 2).reshape(x.shape)"),
        ("*_", "tensors are never changed in place: write x = ws.nn.functional.{plain}(x)"),
        ("*_with_indices", "write the pool itself, or ws.max_pool2d_with_indices"),
        ("max_unpool*", "write ws.max_unpool2d(x, indices, size)"),
        ("fractional_* lp_pool*", "write ws.max_pool2d, ws.avg_pool2d or ws.adaptive_avg_pool2d"),
        ("GRID_*", "write ws.grid_sample(x, grid, mode=...)"),
        ("scaled_mm grouped_mm scaled_grouped_mm", "write a @ b; precision='bfloat16' is half precision"),
    ),
)  # fmt: skip

INIT = NameTable(
    theirs="torch.nn.init",
    ours="ws.nn.init",
    groups=(
        ("sparse_ sparse", "write ws.nn.init.copy_(layer.weight, array) with an array of your own"),
        ("dirac eye", "write ws.nn.init.{name}_(layer.weight)"),
        ("constant kaiming_* normal orthogonal uniform xavier_*", "write ws.nn.init.{name}_(layer.weight), or ws.init.{name} beforehand"),
    ),
)  # fmt: skip


NN = NameTable(
    theirs="torch.nn",
    ours="ws.nn",
    same={
        "MultiheadAttention": "ws.nn.MultiHeadAttention",
        "parameter": "ws.nn.Parameter",
        "utils": "wholestep.interop.names:NN_UTILS",
    },
    say={
        "RReLU": "write ws.nn.LeakyReLU(slope)",
        "Container": "write ws.nn.Module",
        "UninitializedParameter": "parameters have their shape: ws.nn.Parameter(shape)",
        "UninitializedBuffer": "buffers have their shape: ws.nn.Buffer(shape)",
        "SyncBatchNorm": "write ws.nn.BatchNorm2d: its batch is that of all workers",
        "CrossMapLRN2d": "write ws.nn.LocalResponseNorm(size, alpha, beta, k)",
        "NLLLoss2d": "write ws.nn.NLLLoss()",
        "KLDivLoss": "give loss='kl_div', which takes raw scores: ws.losses.kl_div",
        "GaussianNLLLoss": "give loss='gaussian_nll': ws.losses.gaussian_nll_loss",
        "PoissonNLLLoss": "give loss='poisson_nll': ws.losses.poisson_nll_loss",
        "CosineEmbeddingLoss": "write ws.losses.cosine_embedding_loss",
        "HingeEmbeddingLoss": "write ws.losses.hinge_loss",
        "MultiMarginLoss": "give loss='hinge': ws.losses.hinge_loss",
        "SoftMarginLoss": "write ws.softplus(-target * x).mean()",
        "MultiLabelSoftMarginLoss": "give loss='bce': ws.losses.binary_cross_entropy",
        "MultiLabelMarginLoss": "give loss='bce', one answer for each label: ws.losses.binary_cross_entropy",
        "AdaptiveLogSoftmaxWithLoss": "give loss='cross_entropy' over all classes",
        "CTCLoss": "write ws.losses.ctc_loss(logits, labels, input_lengths, target_lengths)",
        "MarginRankingLoss": "write ws.losses.margin_ranking_loss(first, second, target)",
        "TripletMarginLoss": "write ws.losses.triplet_margin_loss(anchor, positive, negative)",
        "TripletMarginWithDistanceLoss": "write ws.relu(distance(a, p) - distance(a, n) + margin).mean()",
        "modules": "layers are in ws.nn",
        "attention": "write ws.attention(q, k, v), or ws.nn.MultiHeadAttention",
        "grad": "gradients of convolutions are those of ws.gradients(loss, [x])",
        "RNNBase": "write ws.nn.RNN, ws.nn.LSTM or ws.nn.GRU",
    },
    groups=(
        ("AlphaDropout FeatureAlphaDropout", "write ws.nn.Dropout(p)"),
        ("DataParallel parallel", RANKS),
        ("Lazy*", "layers are told their sizes: leave out 'Lazy' and give the number of inputs, ws.nn.Linear(inputs, outputs)"),
        ("*Cell *CellBase", CELL),
        ("MaxUnpool1d MaxUnpool3d", "of images: ws.nn.MaxUnpool2d(window)(values, places)"),
        ("FractionalMaxPool* LPPool*", "write ws.nn.MaxPool2d, ws.nn.AvgPool2d or ws.nn.AdaptiveAvgPool2d"),
        ("*Pad1d *Pad2d *Pad3d", "write ws.pad(x, amounts, mode=...) in forward, amounts a pair for each axis"),
        ("Linear?rossEntropy*", "give loss='cross_entropy'; the compiler fuses it with the last layer"),
        ("quantized qat quantizable intrinsic", "ws.nn.quantize(model) computes with int8 values, and ws.export_onnx writes them"),
        ("common_types factory_kwargs", "it is internal there"),
    ),
)  # fmt: skip

OPTIM = NameTable(
    theirs="torch.optim",
    ours="ws.optim",
    same={"lr_scheduler": "ws.schedules"},
    say={
        "SparseAdam": "rows of an embedding that were not looked up have a gradient of 0: write ws.Adam(lr=...)",
        "swa_utils": "write ws.optim.SWA(optimizer), ws.optim.EMA(optimizer, decay=0.999) and ws.schedules.SWALR",
        "swap_in_optimizer_params_and_state": "with ws.optim.raw_weights(model): shows the weights without averages",
    },
)

SCHEDULERS = NameTable(
    theirs="torch.optim.lr_scheduler",
    ours="ws.schedules",
    same={"LRScheduler": "ws.schedules.TorchSchedule"},
    say={
        "MultiplicativeLR": "write ws.schedules.LambdaLR(optimizer, lambda epoch: 0.95**epoch): the product so far",
    },
)

DATA = NameTable(
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

IMAGES = (
    "write data = ws.data.ImageFolder('photos', size=64) for a folder per class, then ws.DataLoader(data, "
    "num_workers=2), or x, y = data.read() of images that fit into memory"
)
PADDING = (
    "sequences of different lengths need no padding: ws.data.Ragged(sequences, targets); batches of a data set are "
    "padded by ws.DataLoader(data, collate_fn=...)"
)
PACKED = "sequences of different lengths are ws.data.Ragged(sequences, targets), packed without padding; of padded arrays the output at the last step of each row is ws.take_along_axis(y, (lengths - 1)[:, None, None], 1)"
WORDS = (
    "write words = ws.data.Vocabulary(texts), or ws.data.BytePairs(texts, size=1000), then ws.data.Ragged("
    "words.encode(texts), labels); numbers of a tokenizer of another library are data as they are"
)
WINDOWS = "write ws.data.Windows(series, length=48, horizon=12), a pair (x, y) that ws.fit takes; .split(0.2) divides it by time"
AUGMENTED = (
    "a transform is a function of a batch and its random numbers: ws.DataLoader(x, y, transform=lambda x, draw: ...), "
    "with draw.uniform() for each row; ws.data.Flip, ws.data.Crop and ws.data.Noise are there"
)
MIXED = (
    "mix in a @ws.step: ws.lerp(ws.flip(x, 0), x, a) with the loss a * ws.losses.cross_entropy(scores, y) + (1 - a) * "
    "ws.losses.cross_entropy(scores, ws.flip(y, 0))"
)
_HESSIAN = "gradients nest: (g,) = ws.gradients(loss, [w]), and a product with v is ws.gradients((g * v).sum(), [w])"

UTILS = NameTable(
    theirs="keras.utils, keras.models, torchvision, lightning",
    ours="ws.utils",
    say={
        "to_categorical": "not needed: loss='cross_entropy' takes class indices; one-hot rows are np.eye(classes, dtype='float32')[y]",
        "load_model": "a file holds weights, the class stays in your code: build the model, then model.load('model.safetensors')",
        "save_model": "write model.save('model.safetensors'): weights by name; the class stays in your code",
        "clone_model": "write copy.deepcopy(model), which has the same weights; a network with others is built anew",
        "Progbar": "ws.fit shows one; in a loop of your own ws.Progress() is a callback",
        "normalize": "write x / np.linalg.norm(x, axis=-1, keepdims=True) of arrays, ws.normalize(x) of tensors",
        "split_dataset": "write ws.data.split(data, 0.2), or validation=0.2 of ws.fit",
        "get_file": "nothing is downloaded; give the path of a file that is here: ws.data.read_csv(path)",
        "data": "batches are ws.DataLoader(x, y), samplers and transforms are in ws.data",
        "checkpoint": "memory=0.7 of ws.fit: the planner decides which values are computed again",
        "tensorboard": "write callbacks=ws.TensorBoardLogger('runs/tb')",
        "summary": "write model.summary(ws.Spec(('batch', 784)))",
        "keras": "layers are in ws.nn, losses in ws.losses, and ws.fit is compile and fit in one: docs/guides/from-keras.md",
        "grad": "write ws.gradients(loss, [x]) inside a @ws.step; of a loss of arrays ws.compute_gradients(loss, model)",
        "vjp": "write ws.gradients((y * v).sum(), [x]) inside a @ws.step",
        "jvp": f"forward mode is not here; {_HESSIAN}",
    },
    groups=(
        ("set_random_seed seed_everything", "write ws.manual_seed(0); np.random and random have seeds of their own"),
        ("model_to_dot plot_model", "ws.export_onnx(model, 'net.onnx', example=x) writes a file that Netron draws; print(model.summary()) is a table"),
        ("Sequence PyDataset", "write a class with __len__ and __getitem__ for ws.DataLoader, or any iterable of batches"),
        ("jacrev jacfwd", "write ws.jacobian(y, x) inside a @ws.step"),
        ("image_dataset_from_directory DatasetFolder ImageDataGenerator load_img img_to_array", IMAGES),
        ("pad_sequence pad_sequences", PADDING),
        ("pack_padded_sequence pad_packed_sequence pack_sequence PackedSequence unpad_sequence unpack_sequence", PACKED),
        ("Tokenizer Vocab TextVectorization build_vocab_from_iterator get_tokenizer text_dataset_from_directory", WORDS),
        ("timeseries_dataset_from_array TimeseriesGenerator sliding_window_view windows", WINDOWS),
        ("MixUp Mixup mixup CutMix Cutmix cutmix", MIXED),
        ("Resize Resizing CenterCrop RandomResizedCrop", "resize before training, with Pillow or np.kron, or in forward: ws.nn.Upsample(size=(32, 32)); " + AUGMENTED),
        ("RandomHorizontalFlip RandomVerticalFlip", "write transform=ws.data.Flip() of ws.DataLoader"),
        ("RandomCrop", "write transform=ws.data.Crop(4) of ws.DataLoader: images are padded by 4 and cut to their size"),
        ("ToTensor PILToTensor", "nothing to write: data are NumPy arrays; bytes become floats by ws.data.Scale(1 / 255)"),
        ("Compose", "write transform=[ws.data.Crop(4), ws.data.Flip()] of ws.DataLoader"),
        ("transforms Rotate Random* ColorJitter Grayscale GaussianBlur AutoAugment RandAugment TrivialAugmentWide AugMix", AUGMENTED),
    ),
)  # fmt: skip

NN_UTILS = NameTable(
    theirs="torch.nn.utils",
    ours="ws.nn.utils",
    same={
        "weight_norm": "ws.nn.weight_norm",
        "spectral_norm": "ws.nn.spectral_norm",
        "rnn": "wholestep.interop.names:RNN_UTILS",
    },
    say={
        "clip_grad_value_": "write ws.fit(..., clip_value=0.5); in a @ws.step ws.optim.clip_by_value(grads, 0.5)",
        "get_total_norm": "write ws.fit(..., gradient_norm=True); in a @ws.step ws.optim.global_norm(grads)",
        "parameters_to_vector": "write np.concatenate([a.ravel() for a in model.state_dict().values()])",
        "vector_to_parameters": "cut the vector with NumPy and give model.load_state_dict(arrays by name)",
        "parametrizations": "write ws.nn.weight_norm(layer) or ws.nn.spectral_norm(layer)",
        "parametrize": "write the expression in forward, or ws.nn.weight_norm(layer) and ws.nn.spectral_norm(layer)",
        "prune": "pruning belongs to the optimizer: ws.optim.Pruned(ws.AdamW(), amount=0.9)",
        "invert_permutation": "write np.argsort(order)",
        "stateless": "write ws.nn.functional_call(model, weights, x)",
    },
    groups=(
        ("clip_grad_norm_ clip_grad_norm", "write ws.fit(..., clip_norm=1.0); in a @ws.step ws.optim.clip_by_global_norm(grads, 1.0)"),
        ("pad_sequence", PADDING),
        ("pack_padded_sequence pad_packed_sequence pack_sequence PackedSequence unpad_sequence unpack_sequence", PACKED),
    ),
)  # fmt: skip
