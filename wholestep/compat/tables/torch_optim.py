"""`torch.optim.X` and `torch.optim.lr_scheduler.X`, looked for as `ws.optim.X` and `ws.schedules.X`."""

from __future__ import annotations

from wholestep.compat.rows import Names

OPTIM = Names(
    theirs="torch.optim",
    ours="ws.optim",
    same={"lr_scheduler": "ws.schedules"},
    say={
        "SparseAdam": "rows of an embedding that were not looked up have a gradient of 0: write ws.Adam(lr=...)",
        "swa_utils": "write ws.optim.SWA(optimizer), ws.optim.EMA(optimizer, decay=0.999) and ws.schedules.SWALR",
        "swap_in_optimizer_params_and_state": "with ws.optim.raw_weights(model): shows the weights without averages",
    },
)

SCHEDULERS = Names(
    theirs="torch.optim.lr_scheduler",
    ours="ws.schedules",
    same={"LRScheduler": "ws.schedules.TorchSchedule"},
    say={
        "MultiplicativeLR": "write ws.schedules.LambdaLR(optimizer, lambda epoch: 0.95**epoch): the product so far",
    },
)
