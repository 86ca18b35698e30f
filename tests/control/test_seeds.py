"""Seeds: stable, named, independent."""

import hashlib

import numpy as np
import pytest

from rti.control.seeds import derive, generator


def test_a_seed_is_the_documented_hash_and_so_the_same_on_every_machine():
    digest = hashlib.sha256()
    for tag, data in ((b"i", b"7"), (b"s", b"rollout"), (b"i", b"12")):
        digest.update(tag + len(data).to_bytes(8, "little") + data)
    assert derive(7, "rollout", 12) == int.from_bytes(digest.digest()[:8], "little") >> 1


def test_seeds_fit_63_bits_and_differ_by_every_part():
    seeds = {derive(s, kind, e, p, m)
             for s in (0, 1, -1) for kind in ("a", "b") for e in range(5) for p in range(20) for m in range(8)}
    assert len(seeds) == 3 * 2 * 5 * 20 * 8
    assert all(0 <= s < 2**63 for s in seeds)


@pytest.mark.parametrize("one, other", [
    ((0, "a", "bc"), (0, "ab", "c")), ((0, 1), (0, "1")), ((0, 1, 2), (0, 12)), ((0,), (0, ""))])
def test_names_that_look_alike_are_kept_apart(one, other):
    assert derive(*one) != derive(*other)


def test_numpy_integers_count_as_integers():
    assert derive(np.int64(3), np.int32(4)) == derive(3, 4)


@pytest.mark.parametrize("part", [1.5, None, True, (1,)])
def test_a_part_that_has_no_stable_name_is_refused(part):
    with pytest.raises(TypeError, match="integers and strings"):
        derive(0, part)


def test_generators_repeat():
    assert (generator(1, "x").random(8) == generator(1, "x").random(8)).all()
    assert (generator(1, "x").random(8) != generator(1, "y").random(8)).any()
