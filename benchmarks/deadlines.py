"""`within=` on three examples: the time from the call to its end, and the result compared with fixed epochs."""

from __future__ import annotations

import time
from typing import Any

SECONDS = 20.0


def _digits() -> Any:
    from examples import digits

    return digits.build()


def _table() -> Any:
    import wholestep as ws
    from examples import tabular_regression as example

    x, y = example.read(example.options([]))
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    model = ws.nn.Sequential(
        ws.nn.Linear(10, 64), ws.nn.SiLU(), ws.nn.Linear(64, 64), ws.nn.SiLU(), ws.nn.Linear(64, 1)
    )
    return _experiment(model, (x, y), 0.2, ws.schedules.cosine(), ws.AdamW(lr=5e-3, weight_decay=0.1))


def _series() -> Any:
    import wholestep as ws
    from examples import timeseries_lstm as example

    x, y = example.windows(example.series(4000), 32)
    cut = len(x) * 4 // 5
    schedule = ws.schedules.cosine(warmup=20)
    return _experiment(example.Forecaster(32), (x[:cut], y[:cut]), (x[cut:], y[cut:]), schedule, ws.Adam(lr=1e-2))


def _experiment(model: Any, data: Any, validation: Any, schedule: Any, optimizer: Any) -> Any:
    import wholestep as ws

    settings = {"schedule": schedule, "optimizer": optimizer, "batch_size": 64}
    return ws.Experiment(model=model, data=data, validation=validation, loss="mse", **settings)


EXAMPLES = {"digits": _digits, "table": _table, "series": _series}


def measure(name: str, seconds: float, threads: int) -> dict[str, float]:
    """The seconds of a run, its validation loss, and the validation loss of a run of the same number of epochs."""
    from wholestep.callbacks import EarlyStopping

    how = {"threads": threads, "seed": 0, "progress": False, "epochs": 1}
    timed, fixed = EXAMPLES[name]().having(how), EXAMPLES[name]().having(how)
    began = time.monotonic()
    history = timed.fit(within=seconds)
    took = time.monotonic() - began
    best = EarlyStopping("val_loss", patience=1 << 30, restore_best=True)
    fixed.fit(epochs=len(history), callbacks=[best])
    return {"seconds": took, "epochs": len(history), "loss": _loss(timed), "fixed_loss": _loss(fixed)}


def _loss(experiment: Any) -> float:
    from wholestep.train.run_limits import limited_data

    held = limited_data(experiment)[1]
    return float(experiment.model.evaluate(held, loss=experiment.loss)["loss"])


def run(threads: int) -> dict[str, dict[str, float]]:
    """Every example."""
    return {name: measure(name, SECONDS, threads) for name in EXAMPLES}


def show(result: dict[str, dict[str, float]]) -> None:
    """A line per example."""
    print(f"{'':<10}{'seconds':>9}{'epochs':>8}{'val_loss':>11}{'of as many epochs':>20}")
    for name, row in result.items():
        print(f"{name:<10}{row['seconds']:>9.2f}{row['epochs']:>8}{row['loss']:>11.4f}{row['fixed_loss']:>20.4f}")
