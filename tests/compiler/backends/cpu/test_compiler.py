from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.compiler.targets import compile_c
from wholestep.compiler.backends.cpu.runtime import compiler as compiler_module
from wholestep.compiler.backends.cpu.runtime.compiler import CCompiler, compile_counter, find_compiler, run_compiler
from wholestep.compiler.backends.cpu.target import (
    AVX2,
    AVX512,
    AVX512BF16,
    NEON,
    NEONBF16,
    PORTABLE,
    available_targets,
    detect_target,
)
from wholestep.compiler.runtime.cache.content_store import ContentStore
from wholestep.compiler.target import Target
from wholestep.errors import CompilerError
from wholestep.platforms import linux

ANSWER = '__attribute__((visibility("default"))) int answer(void) { return %d; }\n'
CALLS_WHAT_IS_MISSING = "int missing_thing(void);\nint f(void) { return missing_thing(); }\n"


def test_source_is_compiled_once_and_then_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = compile_counter.value
    path = compile_c(ANSWER % 42, cache=ContentStore(tmp_path))
    assert ctypes.CDLL(str(path)).answer() == 42
    assert compile_counter.value == before + 1

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started on the warm path")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert compile_c(ANSWER % 42, cache=ContentStore(tmp_path)) == path
    assert compile_counter.value == before + 1


def test_the_key_follows_source_target_and_compiler(tmp_path: Path) -> None:
    cache, before = ContentStore(tmp_path), compile_counter.value
    gcc = find_compiler()
    other = compiler_module.CCompiler(gcc.command, gcc.fingerprint + " newer")
    compile_c(ANSWER % 1, cache=cache, target=PORTABLE.name)
    compile_c(ANSWER % 2, cache=cache, target=PORTABLE.name)
    compile_c(ANSWER % 1, cache=cache, target=PORTABLE.name, compiler=other)
    assert compile_counter.value == before + 3
    compile_c(ANSWER % 1, cache=cache, target=PORTABLE.name)
    assert compile_counter.value == before + 3


def test_the_level_of_a_command_line_wins_over_ours(tmp_path: Path) -> None:
    """It is a part of the key: the same source at two levels is compiled twice."""
    told = "\n#ifdef __OPTIMIZE__\n#define LEVEL 1\n#else\n#define LEVEL 0\n#endif\n"
    source, cache, name = told + ANSWER.replace("%d", "LEVEL"), ContentStore(tmp_path), find_compiler().command[0]
    paths = [compile_c(source, cache=cache, compiler=find_compiler(c)) for c in (None, f"{name} -O0", f"{name} -O1")]
    assert [ctypes.CDLL(str(path)).answer() for path in paths] == [1, 0, 1]
    assert len(set(paths)) == 3


def test_a_damaged_object_is_compiled_again(tmp_path: Path) -> None:
    cache = ContentStore(tmp_path)
    path = compile_c(ANSWER % 3, cache=cache)
    path.write_bytes(b"not an object")
    with pytest.warns(UserWarning, match="damaged"):
        again = compile_c(ANSWER % 3, cache=cache)
    assert ctypes.CDLL(str(again)).answer() == 3


def test_refused_source_shows_what_the_compiler_said(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"(?s)failed with status.*plan\.c.*undeclared_thing"):
        compile_c("int f(void) { return undeclared_thing; }", cache=ContentStore(tmp_path))


def test_a_failing_compiler_shows_its_first_error_and_not_its_warnings(tmp_path: Path) -> None:
    warnings = "".join(f"int *f{i}(void) {{ long x = {i}; return x; }}\n" for i in range(30))
    with pytest.raises(CompilerError, match=r"\.\.\. \d+ lines of warnings\n.*undeclared_thing") as caught:
        compile_c(f"{warnings}int f(void) {{ return undeclared_thing; }}", cache=ContentStore(tmp_path))
    assert "return x" not in str(caught.value)


def test_a_linker_shows_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"undefined reference to .?missing_thing"):
        run_compiler(find_compiler("gcc -Wl,--no-undefined"), PORTABLE.name, {"a.c": CALLS_WHAT_IS_MISSING})


def test_a_requested_compiler_that_is_missing_is_named() -> None:
    with pytest.raises(CompilerError, match="'no-such-cc -O1' was not found"):
        find_compiler("no-such-cc -O1")


def test_a_requested_command_line_keeps_its_arguments() -> None:
    name = Path(find_compiler().command[0]).name
    assert find_compiler(f"{name} -g").command[1:] == ("-g",)


def test_without_any_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(
        CompilerError, match=r"gcc, clang and cc.*pip install ziglang .*wholestep\[cc\].*device=.reference. needs none"
    ):
        find_compiler()


def test_the_zig_wheel_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.99")
    found = find_compiler()
    assert found.command[1:4] == ("-m", "ziglang", "cc")
    assert found.fingerprint == "ziglang 0.99"


def test_windows_installs_the_zig_wheel_and_links_its_waits() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (zig,) = project["optional-dependencies"]["cc"]
    assert f"{zig}; sys_platform == 'win32'" in project["dependencies"]
    there, here = (CCompiler(("zig", "cc", "-target", f"x86_64-{system}-gnu"), "") for system in ("windows", "linux"))
    assert there.libraries == (*here.libraries, "-lapi-ms-win-core-synch-l1-2-0")


def test_a_named_compiler_on_windows_may_have_backslashes_and_spaces() -> None:
    words = compiler_module._words
    assert words(r'"C:\Program Files\gcc.exe" -O1', "win32") == (r"C:\Program Files\gcc.exe", "-O1")
    assert words(r"C:\zig\zig.exe cc", "win32") == (r"C:\zig\zig.exe", "cc")


def test_a_zig_wheel_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.13.0.post1")
    with pytest.raises(CompilerError, match=r"the ziglang wheel 0\.13\.0\.post1 is .* too old.*'ziglang>=0\.16'"):
        find_compiler()


@pytest.mark.parametrize("requested", ["zig cc", "zig cc -target x86_64-linux-musl"])
def test_zig_compiles_for_the_target_and_never_for_this_machine(
    requested: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zig takes -mtune=native, and a command line without a target, for "use all that this processor has"."""
    (tmp_path / "zig").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    call = find_compiler(requested).call(AVX2.name, "plan.c")
    assert call.count("-target") == 1
    assert call[call.index("-target") + 1] in ("x86_64-linux-musl", f"{platform.machine()}-linux-gnu")
    assert "-mavx2" in call
    assert "-mtune=native" not in call


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("flags\t\t: avx2 fma", [NEON, PORTABLE]),  # under qemu
        ("Features\t: fp asimd bf16", [NEONBF16, NEON, PORTABLE]),
        ("flags\t\t: sse4_2 avx", [PORTABLE]),
        ("flags\t\t: avx2 fma avx512f avx512dq", [AVX2, PORTABLE]),
        ("flags\t\t: avx2 fma avx512f avx512dq avx512bw", [AVX512, AVX2, PORTABLE]),
        ("flags\t\t: avx2 fma avx512f avx512dq avx512bw avx512_bf16", [AVX512BF16, AVX512, AVX2, PORTABLE]),
    ],
)
def test_the_target_follows_the_features_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, features: str, expected: list[Target]
) -> None:
    machine = "aarch64" if NEON in expected else "x86_64"
    monkeypatch.setattr(linux.platform, "machine", lambda: machine)
    monkeypatch.setattr(Path, "read_text", lambda _, errors: f"processor\t: 0\n{features}\n")
    available_targets.cache_clear()
    try:
        assert list(available_targets()) == expected
        assert detect_target() == expected[0]
    finally:
        available_targets.cache_clear()


def test_multiply_adds_are_not_contracted(tmp_path: Path) -> None:
    source = '__attribute__((visibility("default"))) float f(float a, float b, float c) { return a * b + c; }\n'
    f = ctypes.CDLL(str(compile_c(source, cache=ContentStore(tmp_path)))).f
    f.restype, f.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    assert f(1 + 2**-12, 1 + 2**-12, -(1 + 2**-11)) == 0.0  # fused it would be 2**-24


def test_files_are_compiled_side_by_side_into_one_object(tmp_path: Path) -> None:
    files = {
        "a.c": "int half(void) { return 21; }\n",
        "b.c": f"int half(void);\n{ANSWER % 0}".replace("0;", "2 * half();"),
    }
    assert ctypes.CDLL(str(compile_c("both", files=files, cache=ContentStore(tmp_path)))).answer() == 42


def test_what_plans_share_is_compiled_once_and_linked_with_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a header whose functions are elsewhere; of a target and a compiler, each its own."""
    commands: list[str] = []

    def counted(command: list[str], folder: str) -> None:
        commands.append(" ".join(command))
        run(command, folder)

    run = compiler_module._run
    monkeypatch.setattr(compiler_module, "_run", counted)
    clear = '#include "conv.h"\n__attribute__((visibility("default"))) void f(float *x) { ws_clear_f32(x, %d); }\n'
    cache, name = ContentStore(tmp_path), compiler_module.SHARED["conv.h"]
    for count in (3, 5):
        x = (ctypes.c_float * 8)(*[1.0] * 8)
        ctypes.CDLL(str(compile_c(clear % count, cache=cache))).f(x)
        assert sum(x) == 8 - count
    assert len([c for c in commands if name in c]) == 1
    compile_c(clear % 3, cache=cache, compiler=find_compiler(f"{find_compiler().command[0]} -O1"))
    assert len([c for c in commands if name in c]) == 2
    compile_c(ANSWER % 1, cache=ContentStore(tmp_path / "other"))
    assert len([c for c in commands if name in c]) == 2


def test_an_error_in_one_of_several_files_is_told(tmp_path: Path) -> None:
    files = {f"{name}.c": f"int {name}(void) {{ return 1; }}\n" for name in "abcd"} | {"e.c": "int e(void) { oops }\n"}
    with pytest.raises(CompilerError, match=r"(?s)e\.c.*oops"):
        compile_c("all", files=files, cache=ContentStore(tmp_path))
