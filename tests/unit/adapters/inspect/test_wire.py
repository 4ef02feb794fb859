import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, UninterpretedOption

from tests.support.errors import refusal
from tfs_lite.adapters.inspect.wire import fields, last_number, last_text, messages, numbers, texts
from tfs_lite.core.status import StatusCode


def view(message):
    return memoryview(message.SerializeToString())


def test_texts_messages_and_numbers_are_found_by_their_field():
    file = FileDescriptorProto(name="a", dependency=["b", "c"], public_dependency=[3, 1 << 30])
    file.message_type.add(name="M").field.add(name="f", number=7)
    found = view(file)
    assert (last_text(found, 1), texts(found, 3), numbers(found, 10, 2)) == ("a", ["b", "c"], [3, 1 << 30])
    (field,) = messages(found, 4, 2)
    assert (last_text(field, 1), last_number(field, 3)) == ("f", 7)


def test_negative_numbers_and_repeated_ones_are_those_of_a_parser():
    option = view(UninterpretedOption(negative_int_value=-5))
    twice = memoryview(bytes(option) + view(UninterpretedOption(negative_int_value=-6)).tobytes())
    assert (last_number(option, 5), last_number(twice, 5)) == (-5, -6)


def test_packed_numbers_are_read_up_to_their_bound():
    packed = memoryview(b"\x0a\x04\x01\x96\x01\x05")
    assert numbers(packed, 1, 3) == [1, 150, 5]
    refusal(numbers, packed, 1, 2, code=StatusCode.DATA_LOSS)


@pytest.mark.parametrize(
    "damaged",
    [b"\x0a", b"\x0a\x05ab", b"\x08", b"\x80" * 11, b"\x0b\x01", b"\x00\x01", b"\x09abc", b"\x0a\xff\xff\xff\xff\x0f"],
)
def test_what_is_cut_off_or_no_message_is_damaged(damaged):
    refusal(lambda: list(fields(memoryview(damaged))), code=StatusCode.DATA_LOSS)
