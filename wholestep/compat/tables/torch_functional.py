"""`torch.nn.functional.X` and `torch.nn.init.X`, looked for as `ws.nn.functional.X` and `ws.nn.init.X`."""

from __future__ import annotations

from wholestep.compat.rows import Names

_SAME = (
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d avg_pool2d avg_pool3d "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d elu gelu group_norm hardswish interpolate "
    "log_softmax max_pool1d max_pool3d mish one_hot pixel_shuffle pixel_unshuffle relu sigmoid silu softmax "
    "tanh Tensor adaptive_avg_pool3d adaptive_max_pool3d local_response_norm unfold fold grid_sample affine_grid "
    "max_pool2d_with_indices"
)

FUNCTIONAL = Names(
    theirs="torch.nn.functional",
    ours="ws.nn.functional",
    same={
        **{name: f"ws.{name}" for name in _SAME.split()},
    },
    say={
        "alpha_dropout": "write ws.dropout(x, p)",
        "feature_alpha_dropout": "write ws.dropout(x, p)",
        "dropout1d": "write x * ws.dropout(ws.ones_like(x[:, :, :1]), p): whole channels",
        "dropout2d": "write x * ws.dropout(ws.ones_like(x[:, :, :1, :1]), p): whole channels",
        "dropout3d": "write x * ws.dropout(ws.ones_like(x[:, :, :1, :1, :1]), p): whole channels",
        "bilinear": "write ws.einsum('bi,oij,bj->bo', x, weight, y)",
        "kl_div": "ws.losses.kl_div takes raw scores; of logarithms: (target * (ws.log(target) - x)).sum(-1).mean()",
        "ctc_loss": "write ws.losses.ctc_loss(logits, labels, input_lengths, target_lengths)",
        "cosine_embedding_loss": "write ws.losses.cosine_embedding_loss",
        "hinge_embedding_loss": "write ws.losses.hinge_loss",
        "gaussian_nll_loss": "write ws.losses.gaussian_nll_loss",
        "poisson_nll_loss": "write ws.losses.poisson_nll_loss",
        "triplet_margin_with_distance_loss": "write ws.relu(distance(a, p) - distance(a, n) + margin).mean()",
        "multi_margin_loss": "write ws.losses.hinge_loss",
        "multilabel_margin_loss": "write ws.losses.binary_cross_entropy, one answer for each label",
        "multilabel_soft_margin_loss": "write ws.losses.binary_cross_entropy",
        "soft_margin_loss": "write ws.softplus(-target * x).mean()",
        "linear_cross_entropy": "write ws.losses.cross_entropy(x @ w.T, labels); the compiler fuses it",
        "embedding_bag": "write ws.nn.functional.embedding(x, weight).sum(1)",
        "multi_head_attention_forward": "write ws.attention(q, k, v), or ws.nn.MultiHeadAttention",
        "gumbel_softmax": "write ws.softmax((x - ws.log(-ws.log(ws.random_uniform(x, x.shape)))) / tau)",
        "instance_norm": "write ws.group_norm(x, channels), or ws.nn.InstanceNorm2d(channels)",
        "rrelu": "write ws.leaky_relu(x, slope)",
        "upsample": "write ws.interpolate(x, scale_factor=2)",
        "upsample_nearest": "write ws.interpolate(x, scale_factor=2)",
        "upsample_bilinear": "write ws.interpolate(x, scale_factor=2, mode='bilinear')",
        "pdist": "write ws.cdist(x, x)",
        "conv_tbc": "write ws.conv1d(x.permute(1, 2, 0), w)",
        "channel_shuffle": "write x.reshape(n, groups, c // groups, h, w).transpose(1, 2).reshape(x.shape)",
        "native_channel_shuffle": "write x.reshape(n, groups, c // groups, h, w).transpose(1, 2).reshape(x.shape)",
        "grad": "gradients of convolutions are those of ws.gradients(loss, [x])",
    },
    groups=(
        ("*_", "tensors are never changed in place: write x = ws.nn.functional.{plain}(x)"),
        ("*_with_indices", "write the pool itself, or ws.max_pool2d_with_indices"),
        ("max_unpool*", "write ws.max_unpool2d(x, indices, size)"),
        ("fractional_* lp_pool*", "write ws.max_pool2d, ws.avg_pool2d or ws.adaptive_avg_pool2d"),
        ("GRID_*", "write ws.grid_sample(x, grid, mode=...)"),
        ("scaled_mm grouped_mm scaled_grouped_mm", "write a @ b; precision='bfloat16' is half precision"),
    ),
)  # fmt: skip

INIT = Names(
    theirs="torch.nn.init",
    ours="ws.nn.init",
    same={},
    say={
        "sparse_": "write ws.nn.init.copy_(layer.weight, array) with an array of your own",
        "sparse": "write ws.nn.init.copy_(layer.weight, array) with an array of your own",
    },
    groups=(
        ("dirac eye", "write ws.nn.init.{name}_(layer.weight)"),
        ("constant kaiming_* normal orthogonal uniform xavier_*", "write ws.nn.init.{name}_(layer.weight), or ws.init.{name} beforehand"),
    ),
)  # fmt: skip
