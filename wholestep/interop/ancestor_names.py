"""What programs for Luminal, Meganeura and Loom call on graphs, sessions and trainers."""

from wholestep.interop.name_tables import NameTable

_COMPILE = "write session = ws.build_session(graph); ws.gradients(loss, params) records gradients before that"
_EXECUTE = "run a step of the session over it: session = ws.build_session(graph), then session.step(**inputs)"
_READ = "keep the tensor, tensor.keep(), and read session.get(tensor) after session.step"

GRAPHS = NameTable(
    theirs="Luminal's Graph",
    ours="a graph",
    say={"compile": _COMPILE, "retrieve": _READ, "get_tensor": _READ, "get_tensor_ref": _READ},
    groups=(
        ("execute execute_debug", _EXECUTE),
        ("drop drop_tensors", "memory of a step is planned: what nobody reads later is reused, and nothing is dropped"),
        ("set_tensor", "an input is an argument of session.step; a state is replaced by session.set(name, array)"),
        ("swap_to_id no_delete", _READ),
    ),
)  # fmt: skip

SESSIONS = NameTable(
    theirs="Meganeura's Session and Loom's Network",
    ours="a session",
    say={
        "compile": "the session is compiled already; call session.step(**inputs)",
        "retrieve": "write session.get(tensor), of a tensor that was kept before the session was built",
        "session_mut": "this is the session",
        "into_session": "this is the session",
    },
    groups=(
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
