"""NumPy's products while compilers run."""

from __future__ import annotations

from threading import Thread

import pytest

from wholestep.compiler.runtime import blas_threads


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads a BLAS uses, as it is told."""
    threads = [5]
    monkeypatch.setattr(blas_threads, "_thread_counts", lambda: (lambda: threads[-1], threads.append))
    return threads


def test_products_have_one_thread_until_the_last_user_is_done(count: list[int]) -> None:
    def other() -> None:
        with blas_threads.on_one_thread():
            assert count[-1] == 1

    with blas_threads.on_one_thread():
        thread = Thread(target=other)
        thread.start()
        thread.join()
        assert count[-1] == 1
    assert count == [5, 1, 5]


def test_the_number_comes_back_after_an_error(count: list[int]) -> None:
    with pytest.raises(ValueError, match="inside"), blas_threads.on_one_thread():
        raise ValueError("inside")
    assert count[-1] == 5


def test_another_blas_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas_threads, "_thread_counts", lambda: None)
    with blas_threads.on_one_thread():
        pass


def test_the_library_of_numpy_is_told() -> None:
    found = blas_threads._thread_counts()
    if found is None:
        pytest.skip("this NumPy brings no OpenBLAS")
    before = found[0]()
    with blas_threads.on_one_thread():
        assert found[0]() == 1
    assert found[0]() == before
