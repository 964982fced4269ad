"""One training step of every small model on this machine's GPU, for compute-sanitizer to look at."""

from __future__ import annotations

from tests.compiler.backends.cuda.emulation.models import MODELS, session_of


def main() -> None:
    for name, (_, draw, _) in MODELS.items():
        for precision in ("float32", "bfloat16"):
            session = session_of(name, "cuda", precision=precision)
            print(name, precision, float(session.step(**draw(3))), flush=True)


if __name__ == "__main__":
    main()
