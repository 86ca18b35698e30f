"""The binary form of records: what was written is read back, and whatever is not a whole record of its kind is refused."""

import struct
import zlib

import msgspec
import numpy as np
import pytest

from rti import trajectory
from rti.trajectory import DecodeError, Group, Sample, Source, Trajectory, decode, decode_at, encode
from tests.factories import make_sample


def record():
    sample = make_sample(np.random.default_rng(3), corrected=(1,))
    return Trajectory(id="0-0/0", group_id="0-0", task_id="t", samples=[sample], info={"turns": np.int64(2)})


def framed(payload: bytes, kind: int = 1, version: int = 1, magic: bytes = b"RTI\x01") -> bytes:
    return struct.pack("<4sHHQI", magic, version, kind, len(payload), zlib.crc32(payload)) + payload


def test_a_record_reads_back_with_the_very_bits_and_arrays_of_its_own():
    sent = record()
    sent.samples[0].teacher_logps = sent.samples[0].behaviour_logps - 1
    came = decode(encode(sent), Trajectory)
    for name in Sample.__struct_fields__:
        one, other = getattr(sent.samples[0], name), getattr(came.samples[0], name)
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes() and other.flags.writeable
    assert came.info == {"turns": 2}
    assert decode(encode(record()), Trajectory).samples[0].teacher_logps is None


def test_a_teachers_tokens_are_of_no_version_and_do_not_age():
    made = record()
    sample = made.samples[0]
    sample.versions[sample.mask] = 7
    assert made.oldest_version == 7
    first = int(sample.mask.argmax())
    sample.sources[first], sample.versions[first] = Source.TEACHER, -1
    sample.check()
    assert made.oldest_version == 7
    sample.weights[sample.mask], sample.sources[sample.mask], sample.versions[:] = 1, Source.TEACHER, -1
    sample.check()
    assert made.oldest_version is None


def test_records_stand_back_to_back():
    data = encode(record()) + encode(Group(id="0-0", task_id="t", members=[record()]))
    _, end = decode_at(data, 0, Trajectory)
    group, end = decode_at(data, end, Group)
    assert group.id == "0-0" and end == len(data)
    with pytest.raises(DecodeError, match="bytes follow the record"):
        decode(data, Trajectory)


def test_a_trajectory_truncated_anywhere_is_refused():
    data = encode(record())
    for length in range(len(data)):
        with pytest.raises(DecodeError, match="truncated"):
            decode(data[:length], Trajectory)


def test_a_changed_byte_anywhere_is_refused():
    data = encode(record())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        with pytest.raises(DecodeError):
            decode(bytes(damaged), Trajectory)


@pytest.mark.parametrize("data, says", [
    (b"PK\x03\x04" + bytes(60), "wrong magic"),
    (framed(b"\x80", version=2), "record format 2; this build reads format 1"),
    (framed(b"\x80", kind=2), "is a Group, not a Trajectory"),
    (framed(b"\x80", kind=9), "is a kind 9, not a Trajectory"),
    (framed(b"\x80"), "missing required field `id`"),
    (framed(b"\xc1"), "not a Trajectory"),
    (framed(b"[]"), "not a Trajectory"),
])
def test_foreign_bytes_are_refused_by_name(data, says):
    with pytest.raises(DecodeError, match=says):
        decode(data, Trajectory)


@pytest.mark.parametrize("code, data", [
    (1, b""), (1, b"\x09\x00"), (1, b"\x01\x00\xc0"), (7, b"x"),
    (1, struct.pack("<H", 6) + msgspec.msgpack.encode(("|O", [1])) + bytes(8)),
    (1, struct.pack("<H", 7) + msgspec.msgpack.encode(("<i4", [9])) + bytes(8)),
    (1, struct.pack("<H", 6) + msgspec.msgpack.encode(("zz", [1])) + bytes(8)),
])
def test_an_array_that_is_none_is_refused(code, data):
    payload = msgspec.msgpack.encode({name: msgspec.msgpack.Ext(code, data) for name in Sample.__struct_fields__})
    with pytest.raises(DecodeError):
        decode(framed(payload, trajectory._KINDS[Sample]), Sample)


def test_no_trajectory_shows_its_evidence_in_its_repr():
    assert "s3cret" not in repr(Trajectory(id="0-0/0", group_id="0-0", task_id="t", evidence={"key": "s3cret"}))


def broken(**columns):
    sample = make_sample(np.random.default_rng(3), corrected=(1,))
    for name, (at, value) in columns.items():
        getattr(sample, name)[at] = value
    return sample


@pytest.mark.parametrize("sample, says", [
    (broken(behaviour_logps=(7, np.nan)), "no finite behaviour"), (broken(versions=(7, -1)), "names no policy version"),
    (broken(weights=(7, 0)), "not positive"), (broken(weights=(7, 0.9)), "other than 1"),
    (broken(correction_logps=(-1, np.nan)), "no finite correction"),
    (msgspec.structs.replace(broken(), weights=np.ones(3, np.float32)), "sample.weights must be float32 of shape"),
])
def test_a_trained_token_without_its_record_is_refused(sample, says):
    with pytest.raises(ValueError, match=says):
        sample.check()
