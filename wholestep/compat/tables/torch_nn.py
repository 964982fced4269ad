"""`torch.nn.X`, looked for as `ws.nn.X`."""

from __future__ import annotations

from wholestep.compat.rows import Names

_CELL = "one step of a loop of your own is written with ws.scan; whole layers are ws.nn.LSTM, ws.nn.GRU, ws.nn.RNN"

_RANKS = (
    "several processes and machines train by `wholestep launch -n 4 train.py` with ws.fit(..., workers=ws.Workers(4))"
)

NN = Names(
    theirs="torch.nn",
    ours="ws.nn",
    same={
        "MultiheadAttention": "ws.nn.MultiHeadAttention",
        "parameter": "ws.nn.Parameter",
        "utils": "wholestep.compat.namespaces:NN_UTILS",
    },
    say={
        "AlphaDropout": "write ws.nn.Dropout(p)",
        "FeatureAlphaDropout": "write ws.nn.Dropout(p)",
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
        "DataParallel": _RANKS,
        "parallel": _RANKS,
        "modules": "layers are in ws.nn",
        "attention": "write ws.attention(q, k, v), or ws.nn.MultiHeadAttention",
        "grad": "gradients of convolutions are those of ws.gradients(loss, [x])",
        "RNNBase": "write ws.nn.RNN, ws.nn.LSTM or ws.nn.GRU",
    },
    groups=(
        ("Lazy*", "layers are told their sizes: leave out 'Lazy' and give the number of inputs, ws.nn.Linear(inputs, outputs)"),
        ("*Cell *CellBase", _CELL),
        ("MaxUnpool1d MaxUnpool3d", "of images: ws.nn.MaxUnpool2d(window)(values, places)"),
        ("FractionalMaxPool* LPPool*", "write ws.nn.MaxPool2d, ws.nn.AvgPool2d or ws.nn.AdaptiveAvgPool2d"),
        ("*Pad1d *Pad2d *Pad3d", "write ws.pad(x, amounts, mode=...) in forward, amounts a pair for each axis"),
        ("Linear?rossEntropy*", "give loss='cross_entropy'; the compiler fuses it with the last layer"),
        ("quantized qat quantizable intrinsic", "there are no quantised numbers here; precision='bfloat16' is half precision"),
        ("common_types factory_kwargs", "it is internal there"),
    ),
)  # fmt: skip
