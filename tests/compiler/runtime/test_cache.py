from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.runtime.cache import content_store as cache_module
from wholestep.compiler.runtime.cache.content_store import CacheWarning, ContentStore, key_of
from wholestep.errors import CacheError


def test_what_was_put_is_found_again(tmp_path: Path) -> None:
    cache = ContentStore(tmp_path / "store")
    key = key_of("some", "parts")
    assert cache.get(key, ".so") is None
    path = cache.put(key, b"data", ".so")
    assert cache.get(key, ".so") == path
    assert path.read_bytes() == b"data"
    assert cache.get(key, ".json") is None
    assert cache.get(key_of("other"), ".so") is None


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    path = ContentStore(tmp_path / "a" / "store").put(key_of("a"), b"x", ".so")
    assert mode(tmp_path / "a" / "store") == mode(path.parent) == 0o700


@pytest.mark.parametrize("given", [0o700, 0o755, 0o750, 0o777, 0o1777, 0o775])
def test_a_folder_that_is_there_is_never_changed(tmp_path: Path, given: int) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(given)
    cache = ContentStore(folder)
    path = cache.put(key_of("a"), b"x", ".so")
    assert mode(folder) == given
    assert cache.get(key_of("a"), ".so") == path
    if given & 0o022:
        assert path.parent.parent == folder / f"wholestep-{os.geteuid()}"
        assert mode(path.parent.parent) == 0o700
    else:
        assert path.parent.parent == folder


def test_a_link_in_a_shared_folder_is_not_followed(tmp_path: Path) -> None:
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    shared.mkdir()
    shared.chmod(0o1777)
    elsewhere.mkdir()
    (shared / f"wholestep-{os.geteuid()}").symlink_to(elsewhere)
    with pytest.warns(CacheWarning, match="is not a folder of yours alone"):
        path = ContentStore(shared).put(key_of("a"), b"x", ".so")
    assert not path.is_relative_to(tmp_path)
    assert list(elsewhere.iterdir()) == []


def test_a_linked_entry_is_not_loaded(tmp_path: Path) -> None:
    cache = ContentStore(tmp_path / "store")
    path = cache.put(key_of("a"), b"data", ".so")
    (tmp_path / "theirs.so").write_bytes(b"data")
    path.unlink()
    path.symlink_to(tmp_path / "theirs.so")
    with pytest.warns(CacheWarning, match="is not a regular file and is not loaded"):
        assert cache.get(key_of("a"), ".so") is None


@pytest.mark.parametrize(("given", "usable"), [(0o1777, True), (0o777, False), (0o755, False)])
def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int, usable: bool) -> None:
    """The shared temporary folder is root's, and what lies in it is safe from others; nobody else's folder is used."""
    folder, me = tmp_path / "store", os.geteuid() + 7
    folder.mkdir()
    folder.chmod(given)
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    monkeypatch.setattr(os, "geteuid", lambda: me)
    if not usable:
        with pytest.warns(CacheWarning, match="it belongs to user 0"):
            assert not ContentStore(folder).folder.is_relative_to(tmp_path)
        return
    own = folder / f"wholestep-{me}"
    own.mkdir(mode=0o700)
    os.chown(own, me, -1)
    assert ContentStore(folder).folder == own


def full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing can be written to a folder: the disk is full."""
    sync = os.fsync

    def refuse(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().is_relative_to(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse)


def test_a_full_disk_costs_one_warning_and_works_privately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ContentStore(tmp_path / "store")
    before = cache.put(key_of("a"), b"data", ".so")
    full(tmp_path, monkeypatch)
    with pytest.warns(CacheWarning, match="No space left on device.*Free space in the folder"):
        path = cache.put(key_of("b"), b"more", ".so")
    assert not path.is_relative_to(tmp_path)
    assert ContentStore(tmp_path / "store").get(key_of("b"), ".so") == path
    assert ContentStore(tmp_path / "store").put(key_of("c"), b"again", ".so").parent.parent == path.parent.parent
    assert before.read_bytes() == b"data"
    assert [p.name for p in (tmp_path / "store" / key_of("b")).iterdir()] == []


def test_where_every_disk_is_full_an_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ContentStore(tmp_path / "store")
    full(Path("/"), monkeypatch)
    with (
        pytest.warns(CacheWarning),
        pytest.raises(CacheError, match=r"4 bytes could be written neither to .* nor to a temporary folder"),
    ):
        cache.put(key_of("a"), b"data", ".so")


def test_a_session_is_built_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    full(tmp_path, monkeypatch)
    g = ws.Graph()
    g.set_outputs({"y": g.input("x", ("batch", 3)) * 2.0})
    with pytest.warns(CacheWarning) as said:
        session = ws.build_inference_session(g, batch_size=2, options=ws.CompileOptions(cache_dir=str(folder)))
    assert len(said) == 1
    assert np.array_equal(session.step(x=np.ones((2, 3), np.float32))["y"], np.full((2, 3), 2.0))


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    cache = ContentStore(tmp_path / "deep" / "store")
    cache.put(key_of("a"), b"x", ".so")
    shutil.rmtree(tmp_path / "deep")
    assert cache.get(key_of("a"), ".so") is None
    path = cache.put(key_of("a"), b"x", ".so")
    assert ContentStore(tmp_path / "deep" / "store").get(key_of("a"), ".so") == path
    assert mode(tmp_path / "deep" / "store") == 0o700
    shutil.rmtree(tmp_path / "deep")
    with cache.lock(key_of("b")):
        assert (tmp_path / "deep" / "store" / key_of("b")).is_dir()


def test_parts_are_not_run_together_in_a_key() -> None:
    assert key_of("ab", "c") != key_of("a", "bc")
    assert key_of("a", b"b") == key_of(b"a", "b")


@pytest.mark.parametrize("damaged", [b"", b"dat", b"datA", b"data and more"])
def test_a_damaged_entry_is_a_miss_with_a_warning_and_is_removed(tmp_path: Path, damaged: bytes) -> None:
    cache = ContentStore(tmp_path)
    path = cache.put(key_of("a"), b"data", ".so")
    path.write_bytes(damaged)
    with pytest.warns(CacheWarning, match="damaged; it was removed"):
        assert cache.get(key_of("a"), ".so") is None
    assert not path.exists()
    cache.put(key_of("a"), b"data", ".so")
    assert cache.get(key_of("a"), ".so") == path


def test_a_file_of_another_user_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ContentStore(tmp_path)
    path = cache.put(key_of("a"), b"data", ".so")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.warns(CacheWarning, match="another user"):
        assert cache.get(key_of("a"), ".so") is None
    assert path.exists()


def test_an_unusable_folder_costs_one_warning_and_works_privately(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    with pytest.warns(CacheWarning, match="cannot be used"):
        path = ContentStore(blocked).put(key_of("a"), b"data", ".so")
    assert not path.is_relative_to(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ContentStore(blocked).get(key_of("a"), ".so") == path


def test_an_interrupted_write_leaves_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ContentStore(tmp_path)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.put(key_of("a"), b"data", ".so")
    assert cache.get(key_of("a"), ".so") is None
    assert list((tmp_path / key_of("a")).iterdir()) == []


def test_a_lock_held_elsewhere_is_not_waited_for_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    monkeypatch.setattr(cache_module, "LOCK_SECONDS", 0.05)
    cache = ContentStore(tmp_path)
    entered = []
    (tmp_path / key_of("a")).mkdir()
    with filelock.FileLock(tmp_path / key_of("a") / ".lock"):

        def enter() -> None:
            with cache.lock(key_of("a")):
                entered.append(True)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(timeout=60)
    assert entered == [True]


def test_discard_removes_the_entries_of_one_key_alone(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    store.put("a", b"1", ".plan")
    store.put("a", b"2", ".verdict")
    kept = store.put("b", b"3", ".plan")
    store.discard("a")
    assert store.get("a", ".plan") is None
    assert store.get("a", ".verdict") is None
    assert kept.exists()
    store.discard("never stored")
    with pytest.raises(AssertionError, match="an empty key would name the whole cache"):
        store.discard("")
    assert kept.exists()
