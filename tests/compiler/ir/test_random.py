"""Philox: known answers, and the properties everything above relies on."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from wholestep.compiler.ir.semantics.random import (
    consecutive_words,
    key_hash,
    normal,
    philox,
    splitmix64,
    uniform,
    words,
)


# From the authors' known-answer tests (Random123, kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, expected):
    got = philox(tuple(np.array([c], np.uint64) for c in counter), key)
    assert tuple(int(w[0]) for w in got) == expected


def test_key_hash_is_the_start_of_sha256():
    assert key_hash("layer.0") == int.from_bytes(hashlib.sha256(b"layer.0").digest()[:8], "little")


def test_splitmix64_known_answer():
    assert splitmix64(0) == 0xE220A8397B1DCDAF


def test_the_words_as_the_definition_says():
    seed, step, element = 3, 2**32 + 5, 4 * (2**32 + 7) + 2
    mixed = key_hash("k") ^ splitmix64(seed)
    counter = tuple(np.array([c], np.uint64) for c in (7, 1, 5, 1))
    expected = philox(counter, (mixed % 2**32, mixed >> 32))[2]
    assert words(seed, "k", step, np.array([element], np.uint64)) == expected


def test_an_element_does_not_depend_on_the_shape():
    assert np.array_equal(uniform(1, "k", 2, (6, 5)).reshape(-1)[:7], uniform(1, "k", 2, (7,)))
    assert np.array_equal(normal(1, "k", 2, (6, 5)).reshape(-1)[:7], normal(1, "k", 2, (7,)))


@pytest.mark.parametrize("other", [(2, "k", 2), (1, "l", 2), (1, "k", 3)])
def test_seed_key_and_step_each_change_the_numbers(other):
    assert not np.any(uniform(1, "k", 2, (50,)) == uniform(*other, (50,)))


def test_uniform_is_a_multiple_of_2_to_the_minus_24_below_1():
    u = uniform(0, "u", 0, (20000,))
    assert np.array_equal(u, u.astype(np.float32))
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01
    assert np.array_equal(u * 2**24, np.floor(u * 2**24))


def test_normal_has_the_moments_of_a_normal():
    z = normal(0, "z", 0, (40000,))
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 0.02
    assert abs(z.std() - 1) < 0.02
    assert abs((z**4).mean() - 3) < 0.2


def test_empty_and_scalar_shapes():
    assert uniform(0, "k", 0, (0, 3)).shape == (0, 3)
    assert uniform(0, "k", 0, ()).shape == ()


@pytest.mark.parametrize("first", [1, 4, 7])
def test_a_part_has_the_numbers_of_its_place(first):
    whole = uniform(5, "dropout", 3, (20,))
    np.testing.assert_array_equal(uniform(5, "dropout", 3, (3, 4), first), whole[first : first + 12].reshape(3, 4))


@pytest.mark.parametrize("first", [0, 3, 4, 1001])
def test_consecutive_words_are_those_of_their_elements(first):
    elements = np.arange(first, first + 37, dtype=np.uint64)
    np.testing.assert_array_equal(consecutive_words(7, "k", 3, 37, first), words(7, "k", 3, elements))


@pytest.mark.parametrize("first", [1, 6])
def test_a_part_of_normal_numbers_has_those_of_its_place(first):
    whole = normal(1, "k", 2, (20,))
    np.testing.assert_array_equal(normal(1, "k", 2, (9,), first), whole[first : first + 9])
