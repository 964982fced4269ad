"""Objects of other libraries where ours belong: whose they are, and what to write."""

from __future__ import annotations

from typing import Any

LIBRARIES = {"torch": "torch", "torchvision": "torch", "keras": "Keras", "tensorflow": "Keras", "flax": "Flax"}


def library_of(value: object) -> str:
    """The library that an object, a class or a function belongs to; "" for none of those above."""
    home = getattr(value, "__module__", None) if isinstance(value, type) or hasattr(value, "__name__") else None
    home = home or type(value).__module__
    return LIBRARIES.get(str(home).partition(".")[0], "")


def instead(value: object, place: str) -> str:
    """`That is torch's Linear: write ws.nn.Linear(...).`; "" where it is nobody's."""
    library = library_of(value)
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    if not library:
        return ""
    from wholestep.compat.names import answer_to, path_of, resolve_path

    path = path_of(place, name)
    here = path or (f"{place}.{name}" if name in getattr(resolve_path(place), "__all__", ()) else None)
    text = f"write {here}(...)" if here else answer_to(place, name)
    return f"That is {library}'s {name}" + (f": {text}." if text else "; layers and functions are those of ws.")


def torch_function(function: Any) -> str:
    """What to write for a function of torch that was called on a tensor of ours."""
    from wholestep.compat.names import answer_to, path_of, resolve_path

    name = str(getattr(function, "__name__", function))
    for place in ("ws", "ws.nn.functional"):
        if path_of(place, name) or name in getattr(resolve_path(place), "__all__", ()):
            return f"write {place}.{name}(...)"
        text = answer_to(place, name)
        if text is not None:
            return text
    return "functions of tensors are in ws and ws.nn.functional"
