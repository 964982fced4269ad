"""Estimators for scikit-learn: `Classifier` and `Regressor`.  They need `pip install "wholestep[sklearn]"`."""

from typing import Any

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__all__ = _exports.names


def __getattr__(name: str) -> Any:
    try:
        return _exports.load(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ImportError(
            "wholestep.sklearn needs scikit-learn 1.6 or newer: pip install 'wholestep[sklearn]'.", name="sklearn"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
