"""The data structure of tables of other libraries' names, sentences that several tables share, and small tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Say:
    """A name that is not supported: what to write instead, as a sentence without its full stop."""

    text: str


@dataclass(frozen=True)
class Only:
    """An argument that is ignored if its value is one of these; otherwise an error says what to write."""

    values: tuple[object, ...]
    text: str


def paths(names: str, home: str = "ws.") -> dict[str, str]:
    """Names as in `same` of a table: `"exp cat=concat"` is {"exp": "ws.exp", "cat": "ws.concat"}."""
    pairs = ((theirs, ours or theirs) for theirs, _, ours in (word.partition("=") for word in names.split()))
    return {theirs: home + ours for theirs, ours in pairs}


# Sentences that several tables use.
CELL = "one step of a loop of your own is written with ws.scan; whole layers are ws.nn.LSTM, ws.nn.GRU, ws.nn.RNN"
RANKS = (
    "several processes and machines train by `wholestep launch -n 4 train.py` with ws.fit(..., workers=ws.Workers(4))"
)
DEVICE = "the device belongs to the run: ws.fit(..., device='cuda'), also of ws.build_session, predict and evaluate"
MODE = "whether a step trains belongs to the entry point (session.step trains, predict and evaluate do not)"
PRECISION = "write precision='bfloat16' or 'float16' to ws.fit or ws.build_session"

IN_PLACE = "*_"  # pattern of functions that change a tensor in place
EVERY = object()  # in Only: every value is accepted, since the argument has no effect here


@dataclass(frozen=True)
class NameTable:
    """The public names of one module of another library, or the attributes of one of its classes.

    Args:
        theirs: the module in the other library: "torch.nn".
        ours: the module here in which users look for these names: "ws.nn".
        same: their name -> ours, with which it means the same; a path from `ws`, or "module:name" of the package.
        say: their name, or a pattern, -> what to write.
        groups: the same for many names, separated by spaces.
        differs: names that exist here with another meaning: the difference.
    """

    theirs: str
    ours: str
    same: Mapping[str, str] = field(default_factory=dict)
    say: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[tuple[str, str], ...] = ()
    differs: Mapping[str, str] = field(default_factory=dict)

    def answer(self, name: str) -> str | None:
        """What to write for a name that differs here; `{name}` in the sentence is replaced by the name."""
        if name in self.say:
            return self.say[name].replace("{name}", name)
        for names, text in self.groups:
            if names == IN_PLACE and name.endswith("_") and (inner := self.answer(name.rstrip("_"))) is not None:
                return f"tensors are never changed in place; of `{name.rstrip('_')}`: {inner}"
            if any(fnmatchcase(name, pattern) for pattern in names.split()):
                return text.replace("{name}", name).replace("{plain}", name.rstrip("_"))
        return None

    def patterns(self) -> Iterator[str]:
        """Every name, or pattern of names, in the table."""
        yield from self.say
        for names, _ in self.groups:
            yield from names.split()


# -- what programs for Luminal, Meganeura and Loom call on graphs, sessions and trainers -------------------------------

_COMPILE = "write session = ws.build_session(graph); ws.gradients(loss, params) records gradients before that"
_EXECUTE = "run a step of the session over it: session = ws.build_session(graph), then session.step(**inputs)"
_READ = "keep the tensor, tensor.keep(), and read session.get(tensor) after session.step"

GRAPHS = NameTable(
    theirs="Luminal's Graph",
    ours="a graph",
    say={"compile": _COMPILE},
    groups=(
        ("execute execute_debug", _EXECUTE),
        ("drop drop_tensors", "memory of a step is planned: what nobody reads later is reused, and nothing is dropped"),
        ("set_tensor", "an input is an argument of session.step; a state is replaced by session.set(name, array)"),
        ("retrieve get_tensor get_tensor_ref swap_to_id no_delete", _READ),
    ),
)  # fmt: skip

SESSIONS = NameTable(
    theirs="Meganeura's Session and Loom's Network",
    ours="a session",
    say={
        "compile": "the session is compiled already; call session.step(**inputs)",
        "retrieve": "write session.get(tensor), of a tensor that was kept before the session was built",
    },
    groups=(
        ("session_mut into_session", "this is the session"),
        ("execute train_step run_step", "write session.step(**inputs)"),
        ("ForwardCPU ForwardGPU forward_cpu forward_gpu", "write session.forward(**inputs); device= of build_session "
         "says where it runs"),
        ("BackwardCPU BackwardGPU backward_cpu backward_gpu", "write session.backward(grad_output)"),
        ("ApplyGradients", "write session.apply_gradients(lr)"),
        ("ClipGradients", "write session.clip_gradients(max_norm)"),
        ("SetOptimizer", "write session.set_optimizer(ws.AdamW())"),
        ("SetObserver", "write session.set_observer(ws.ConsoleObserver())"),
        ("PrintGradientStats GetGradientStats", "write session.print_gradient_stats() or session.gradient_stats()"),
        ("InitGPU ReleaseGPU init_gpu release_gpu", "write ws.build_session(..., device='cuda'), and session.close()"),
    ),
)  # fmt: skip

TRAINERS = NameTable(
    theirs="Meganeura's Trainer",
    ours="a trainer",
    say={
        "session_mut": "write trainer.session; objects of Python are changed through any name",
        "into_session": "write trainer.session; it stays usable after the trainer",
        "fit": "write trainer.train(loader, epochs), or ws.fit(model, data, loss=...) without a trainer",
        "step": "write trainer.train_epoch(loader, epoch), or trainer.session.step(**inputs)",
    },
)
