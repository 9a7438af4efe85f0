"""Every case of a safetensors header, decided as written down and compared with the reference implementation."""

import inspect
import json
import sys
from struct import pack

import numpy as np
import pytest
import safetensors
from each_row import each_row
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from streamer.core.errors import HeaderError, TruncatedError
from streamer.core.format import header as header_module
from streamer.core.format.header import TensorEntry, header_size_bytes, parse_header

URI = "s3://bucket/model.safetensors"
ONE = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'


def file_of(text, data=b"", *, length=None):
    encoded = text.encode() if isinstance(text, str) else text
    return pack("<Q", len(encoded) if length is None else length) + encoded + data


def entry(shape, offsets, dtype="U8", more=""):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{more}}}'


def one(shape="[1]", offsets="[0,1]", dtype="U8", more="", name="a", data=b"x"):
    """A file of one tensor, right unless an argument makes it wrong."""
    return file_of(f'{{"{name}":{entry(shape, offsets, dtype, more)}}}', data)


def two(first, second, data):
    return file_of(f'{{"a":{first},"b":{second}}}', data)


def with_metadata(value, data=b"x"):
    return file_of(f'{{"__metadata__":{value},"a":{ONE}}}', data)


def ours(content, **options):
    """The tensors as a set of (name, dtype, shape, bytes)."""
    header = parse_header(content, len(content), uri=URI, **options)
    return {(e.name, e.dtype, e.shape, content[e.begin : e.end]) for e in header.entries}


def reference(content):
    return {
        (name, tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
        for name, tensor in safetensors.deserialize(content)
    }


def table(cases):
    return pytest.mark.parametrize("content", cases.values(), ids=cases.keys())


NESTED = "[" * 200 + "]" * 200

REFUSED_BY_BOTH = {
    "0 bytes": b"",
    "7 bytes": b"\2\0\0\0\0\0\0",
    "N is 0": file_of(""),
    "an open brace only": file_of("{"),
    "an array": file_of("[]"),
    "null": file_of("null"),
    "only spaces": file_of("  "),
    "a trailing comma": file_of(f'{{"a":{ONE},}}', b"x"),
    "a comma missing": file_of(f'{{"a":{entry("[0]", "[0,0]")}"b":{ONE}}}', b"x"),
    "a leading comma": file_of(f'{{,"a":{ONE}}}', b"x"),
    "trailing garbage": file_of(f'{{"a":{ONE}}}x', b"x"),
    "a second object": file_of(f'{{"a":{ONE}}}{{}}', b"x"),
    "a trailing NUL": file_of(f'{{"a":{ONE}}}\0', b"x"),
    "what the reference saves for no tensors and empty metadata": save({}, {}),
    "a comment": file_of(f'{{"a":{ONE}/* */}}', b"x"),
    "single quotes": file_of("{'a':{}}"),
    "a byte order mark": file_of(f'\ufeff{{"a":{ONE}}}', b"x"),
    "a form feed before the brace": file_of(f'\f{{"a":{ONE}}}', b"x"),
    "invalid UTF-8": file_of(f'{{"a\xff":{ONE}}}'.encode("latin-1"), b"x"),
    "a surrogate in UTF-8": file_of(b'{"a\xed\xa0\x80":%s}' % ONE.encode(), b"x"),
    "an overlong UTF-8 form": file_of(b'{"a\xc0\xaf":%s}' % ONE.encode(), b"x"),
    "NaN": one(more=',"x":NaN'),
    "N is 100 000 001": file_of("{}", length=100_000_001),
    "N is 2**63": file_of("{}", length=2**63),
    "N is 2**64 - 1": file_of("{}", length=2**64 - 1),
    "N beyond the object": file_of("{}", length=3),
    "N one short of the JSON": file_of("{} ", length=1),
    "data after an empty header": file_of("{}", b"x"),
    "data long": one(data=b"xy"),
    "a hole at the beginning": one(offsets="[1,2]", data=b"xx"),
    "a hole in the middle": two(ONE, entry("[1]", "[2,3]"), b"xxx"),
    "a partial overlap": two(entry("[2]", "[0,2]"), entry("[2]", "[1,3]"), b"xxx"),
    "two names on the same bytes": two(ONE, ONE, b"x"),
    "end before begin": one("[1]", "[1,0]"),
    "an empty tensor inside another": two(entry("[2]", "[0,2]"), entry("[0]", "[1,1]"), b"xx"),
    "an empty tensor after the end": one("[0]", "[5,5]", data=b""),
    "shape and length differ": one("[2]"),
    "scalar of no bytes": one("[]", "[0,0]", data=b""),
    "bits overflow": one("[2305843009213693952]", "[0,1]"),
    "elements overflow": one(f"[2,{2**64 - 2}]"),
    "U8 [2**62]": one(f"[{2**62}]"),
    "[2**63, 4, 0]": one(f"[{2**63},4,0]", "[0,0]", data=b""),
    "F4 [1], misaligned": one("[1]", dtype="F4"),
    "dtype missing": file_of('{"a":{"shape":[1],"data_offsets":[0,1]}}', b"x"),
    "shape missing": file_of('{"a":{"dtype":"U8","data_offsets":[0,1]}}', b"x"),
    "offsets missing": file_of('{"a":{"dtype":"U8","shape":[1]}}', b"x"),
    "dtype unknown": one(dtype="U7"),
    "dtype in lower case": one(dtype="u8"),
    "dtype null": file_of('{"a":{"dtype":null,"shape":[1],"data_offsets":[0,1]}}', b"x"),
    "dtype a number": file_of('{"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}', b"x"),
    "shape null": one("null"),
    "shape an object": one("{}"),
    "shape a number": one("1"),
    "shape nested": one("[[1]]"),
    "shape with a trailing comma": one("[1,]"),
    "shape without a comma": one("[1 1]"),
    "offsets null": one(offsets="null"),
    "1 offset": one(offsets="[0]"),
    "3 offsets": one(offsets="[0,1,1]"),
    "no offsets": one(offsets="[]"),
    "a tensor null": file_of('{"a":null}'),
    "a tensor a string": file_of('{"a":"U8"}'),
    "a field twice": one(more=',"dtype":"U8"'),
    "metadata of another type": with_metadata('"x"'),
    "metadata an array": with_metadata("[]"),
    "metadata that looks like a tensor": file_of(f'{{"__metadata__":{ONE}}}', b"x"),
    "metadata in escapes that looks like a tensor": file_of(f'{{"__m\\u0065tadata__":{ONE}}}', b"x"),
    "metadata twice": file_of(f'{{"__metadata__":{{}},"__metadata__":{{}},"a":{ONE}}}', b"x"),
    "metadata first and last": file_of(f'{{"__metadata__":{{}},"a":{ONE},"__metadata__":{{}}}}', b"x"),
    "metadata null and last": file_of(f'{{"__metadata__":null,"a":{ONE},"__metadata__":{{}}}}', b"x"),
    "a metadata value a number": with_metadata('{"k":1}'),
    "a metadata value null": with_metadata('{"k":null}'),
    "a metadata value an object": with_metadata('{"k":{}}'),
    "a metadata value an array": with_metadata('{"k":["v"]}'),
    "metadata that holds a tensor": with_metadata(f'{{"x":{ONE}}}'),
    "metadata with a trailing comma": with_metadata('{"k":"v",}'),
    "metadata with a wrong escape": with_metadata(r'{"k":"\x41"}'),
    "a lone surrogate in metadata": with_metadata(r'{"k":"\ud800"}'),
    "a lone low surrogate in metadata": with_metadata(r'{"k":"\udc00\ud800"}'),
    "a lone surrogate in a name": one(name=r"\ud800"),
    "a lone surrogate after an escaped backslash": one(name=r"\\\ud800"),
    "a lone surrogate in an unknown field": one(more=r',"x":"\ud800"'),
    "a lone surrogate in a list of an unknown field": one(more=r',"x":[["\ud800"]]'),
    "a lone surrogate in a name of an unknown field": one(more=r',"x":{"\ud800":1}'),
    "a lone surrogate in a value of an unknown field": one(more=r',"x":{"y":"\ud800"}'),
    "a raw control character in a name": one(name="a\nb"),
    "a raw control character in metadata": with_metadata('{"k":"a\tb"}'),
    "metadata nested 200": with_metadata(NESTED),
    "an unknown field nested 200": one(more=f',"x":{NESTED}'),
    "nesting behind an escaped quote": one(more=f',"x\\"":{NESTED}'),
    "an unknown field nested 126": one(more=f',"x":{"[" * 126 + "]" * 126}'),
    "brackets nested 100 000": file_of("[" * 100_000),
    "objects nested 100 000": file_of('{"a":' * 100_000),
    "an unclosed string full of brackets": file_of('{"' + "[" * 1000),
}
REFUSED_NUMBERS = ["-1", str(2**64), "1.0", "1e0", '"1"', "true", "false", "null", "01", "-0", "[]", "0x1", "+1"]
REFUSED_BY_BOTH |= {f"dimension {n}": one(f"[{n}]") for n in REFUSED_NUMBERS}
REFUSED_BY_BOTH |= {f"dimension {n} of none": one(f"[0,{n}]", "[0,0]", data=b"") for n in REFUSED_NUMBERS}
REFUSED_BY_BOTH |= {f"offset {n}": one(offsets=f"[0,{n}]") for n in REFUSED_NUMBERS}
REFUSED_BY_BOTH |= {f"first offset {n}": one("[0]", f"[{n},0]", data=b"") for n in REFUSED_NUMBERS}

TRUNCATED_FOR_BOTH = {
    "data short": one("[2]", "[0,2]"),
    "no data": one(data=b""),
    "data short by one of 2**60": one(f"[{2**60}]", f"[0,{2**60}]"),
}

READ_BY_BOTH = {
    "no tensors": file_of("{}"),
    "no tensors, metadata": file_of('{"__metadata__":{"k":"v"}}'),
    "spaces before": file_of(f'  \n\t{{"a":{ONE}}}', b"x"),
    "spaces after": file_of(f'{{"a":{ONE}}} \r\n  ', b"x"),
    "spaces everywhere": file_of(' { "a" : { "dtype" : "U8" , "shape" : [ 1 ] , "data_offsets" : [ 0 , 1 ] } } ', b"x"),
    "keys not in offset order": two(entry("[1]", "[1,2]"), entry("[1]", "[0,1]"), b"xy"),
    "fields in another order": file_of('{"a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}}', b"x"),
    "an empty tensor in between": file_of(
        f'{{"a":{ONE},"b":{entry("[0]", "[1,1]")},"c":{entry("[1]", "[1,2]")}}}', b"xy"
    ),
    "an empty tensor at the beginning, named last": two(ONE, entry("[0]", "[0,0]"), b"x"),
    "two empty tensors": two(entry("[0]", "[0,0]"), entry("[5,0]", "[0,0]"), b""),
    "an unknown field": one(more=',"x":{"y":[1.5,-0,null,true,{"z":1e3}]}'),
    "an unknown field of brackets in strings": one(more=r',"x":"[[\"[{"'),
    "200 brackets in a string behind an escaped quote": one(more=rf',"x":"\"{"[" * 200}"'),
    "an unknown field nested 125": one(more=f',"x":{"[" * 125 + "]" * 125}'),
    "an unknown field that looks like a tensor": one(more=f',"x":{{"y":1,"z":{ONE}}}'),
    "N odd": file_of(f'{{"ab":{ONE}}}', b"x"),
    "a misaligned tensor": two(ONE, entry("[1]", "[1,9]", "F64"), b"x" * 9),
    "rank 64": one(str([1] * 64)),
    "a scalar": one("[]"),
    "[0, 2**63, 4]": one(f"[0,{2**63},4]", "[0,0]", data=b""),
    "[0, 2**64 - 1]": one(f"[0,{2**64 - 1}]", "[0,0]", data=b""),
    "metadata null": with_metadata("null"),
    "metadata empty": with_metadata("{}"),
    "metadata of JSON in a string": with_metadata(r'{"k":"{\"a\":[1,{}]}","l":"\\"}'),
    "metadata last": file_of(f'{{"a":{ONE},"__metadata__":{{"k":"v"}}}}', b"x"),
    "a pair of surrogates": with_metadata(r'{"k":"\ud83d\ude00"}'),
    "an escaped backslash before ud800": one(name=r"\\ud800"),
    "name empty": one(name=""),
    "name in escapes": one(name=r"\u0061\n\"\/"),
    "name with NUL": one(name=r"\u0000"),
    "name with newline": one(name=r"\n"),
    "name with a raw DEL": one(name="\x7f"),
    "name that climbs": one(name="../../x"),
    "name of 1 MB": one(name="n" * 1_000_000),
    "name in Chinese": one(name="权重"),
    "name almost __metadata__": one(name="__metadata__ "),
    "F4 [2]": one("[2]", dtype="F4"),
    "F6_E2M3 [4]": one("[4]", "[0,3]", "F6_E2M3", data=b"xyz"),
    "F6_E3M2 [4]": one("[4]", "[0,3]", "F6_E3M2", data=b"xyz"),
    "BOOL byte 2": one(dtype="BOOL", data=b"\2"),
}

REFUSED_BY_US_ONLY = {
    "a tensor as an array": file_of('{"a":["U8",[1],[0,1]]}', b"x"),
    "a dtype as an object": file_of('{"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}}', b"x"),
    "a name twice": file_of(f'{{"a":{ONE},"a":{ONE}}}', b"x"),
    "a name twice, once in escapes": file_of(f'{{"a":{ONE},"\\u0061":{ONE}}}', b"x"),
    "an empty tensor twice": two(entry("[0]", "[0,0]"), ONE, b"x").replace(b'"b"', b'"a"'),
    "a name twice, far apart": file_of(f'{{"a":{ONE},"b":{entry("[0]", "[1,1]")},"a": {ONE}}}', b"x"),
    "a metadata key twice": with_metadata('{"k":"v","k":"w"}'),
    "a metadata key twice, once in escapes": with_metadata(r'{"k":"v","\u006b":"w"}'),
    "an unknown field twice": one(more=',"x":1,"x":2'),
    "rank 65": one(str([1] * 65)),
    "rank 1000": one(str([1] * 1000)),
}


@table(REFUSED_BY_BOTH)
def test_both_readers_refuse_the_header(content):
    with pytest.raises(HeaderError) as caught:
        ours(content)
    assert caught.value.uri == URI
    assert len(str(caught.value)) < 600
    with pytest.raises(safetensors.SafetensorError):
        reference(content)


@table(TRUNCATED_FOR_BOTH)
def test_both_readers_refuse_an_object_that_ends_inside_its_data(content):
    with pytest.raises(TruncatedError) as caught:
        ours(content)
    assert caught.value.uri == URI
    assert caught.value.object_size == len(content)
    with pytest.raises(safetensors.SafetensorError):
        reference(content)


@table(READ_BY_BOTH)
def test_both_readers_return_the_same_header(content):
    assert ours(content) == reference(content)


@table(REFUSED_BY_US_ONLY)
def test_only_we_refuse(content):
    with pytest.raises(HeaderError) as caught:
        ours(content)
    assert caught.value.uri == URI
    reference(content)


def test_the_cap_on_ranks_is_an_option():
    content = REFUSED_BY_US_ONLY["rank 1000"]
    assert ours(content, max_rank=1000) == reference(content)


def test_entries_come_in_file_order_with_absolute_offsets():
    content = file_of(f'{{"a":{entry("[1]", "[1,2]")},"b":{entry("[0]", "[1,1]")},"c":{ONE}}}', b"xy")
    header = parse_header(content, len(content), uri=URI)
    begin = len(content) - 2
    assert header.data_begin == begin
    assert tuple(header.entries) == (
        TensorEntry("c", "U8", (1,), begin, begin + 1),
        TensorEntry("b", "U8", (0,), begin + 1, begin + 1),
        TensorEntry("a", "U8", (1,), begin + 1, begin + 2),
    )


@pytest.mark.parametrize(
    ("written", "metadata"),
    [("null", None), ("{}", {}), (r'{"k":"\u0041\n","":"é"}', {"k": "A\n", "": "é"})],
)
def test_metadata_is_read(written, metadata):
    content = with_metadata(written)
    assert parse_header(content, len(content), uri=URI).metadata == metadata


def test_absent_metadata_is_none():
    assert parse_header(one(), len(one()), uri=URI).metadata is None


def test_bytes_after_the_header_are_ignored_and_may_be_missing():
    content = one()
    whole = parse_header(content, len(content), uri=URI)
    assert parse_header(memoryview(content)[: whole.data_begin], len(content), uri=URI) == whole


@pytest.mark.parametrize("read_bytes", [0, 7, 8, 20])
def test_a_read_that_ended_inside_the_header_is_truncated(read_bytes):
    with pytest.raises(TruncatedError):
        parse_header(one()[:read_bytes], len(one()), uri=URI)


def test_the_length_is_judged_from_eight_bytes():
    assert header_size_bytes(pack("<Q", 100_000_000), 100_000_008, uri=URI) == 100_000_008
    with pytest.raises(HeaderError, match="100000001"):
        header_size_bytes(pack("<Q", 100_000_001), 2**40, uri=URI)


@each_row(
    ("content", "words"),
    [
        (one("[2]"), ["tensor 'a'", "make 2 bytes", "[0, 1] hold 1"]),
        (one(dtype="U7"), ["tensor 'a'", "'U7'", "BF16"]),
        (one(more=',"x":1', dtype="U7"), ["tensor 'a'", "'U7'", "BF16"]),
        (one("[-1]"), ["tensor 'a'", "shape", "-1"]),
        (one("[01]"), ["not JSON", "at character 29"]),
        (one(name="n" * 1_000_000, dtype="U7"), ["n" * 80 + "'…"]),
        (one(name=r"\n", offsets="[1]"), [r"tensor '\n'", "holds 1 numbers"]),
        (two(ONE, entry("[1]", "[2,3]"), b"xxx"), ["before tensor 'b'", "no tensor"]),
        (two(entry("[2]", "[0,2]"), entry("[2]", "[1,3]"), b"xxx"), ["tensor 'b'", "inside tensor 'a'"]),
        (file_of(f'{{"a":{ONE},"a":{ONE}}}', b"x"), ["tensor 'a' occurs twice"]),
        (file_of(f'{{"a":{ONE},}}', b"x"), [f"another member or the closing brace at character {len(ONE) + 5}"]),
    ],
)
def test_the_message_says_which_tensor_and_why(content, words):
    with pytest.raises(HeaderError) as caught:
        ours(content)
    assert URI in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == []


LONG = "the number 11111111111111111111… has too many digits"  # of 64 bits the largest one has twenty


@each_row(
    ("content", "words"),
    [
        (one(f"[{'1' * 5000}]"), LONG),
        (one(f"[1,{'1' * 70_000}]"), LONG),
        (one(f"[-0,{'1' * 5000}]"), LONG),
        (one(offsets=f"[0,{'1' * 5000}]"), LONG),
        (one(more=f',"x":{"1" * 5000}'), LONG),
        (one(f"[{'1' * 4000}]"), f"shape holds {'1' * 80}…, not a whole number"),
        (one("1" * 4000), f"shape is {'1' * 80}…, not a JSON array"),
    ],
)
def test_a_number_of_thousands_of_digits_is_an_error_of_ours_regression(content, words):
    """The message was Python's, with its advice to raise the limit for the whole process."""
    with pytest.raises(HeaderError) as caught:
        ours(content)
    assert f"tensor 'a': {words}" in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.fixture
def recursion_limit():
    limit = sys.getrecursionlimit()
    yield sys.setrecursionlimit
    sys.setrecursionlimit(limit)


def test_nesting_is_refused_without_recursion_whatever_the_limit(recursion_limit):
    content = one(more=',"x":' + "[" * 5_000_000 + "]" * 5_000_000)
    recursion_limit(10_000_000)
    with pytest.raises(HeaderError, match="nested deeper than 127"):
        ours(content)


def test_a_nearly_exhausted_stack_is_no_recursion_error(recursion_limit):
    content = one(more=',"x":' + "[" * 125 + "]" * 125)
    recursion_limit(len(inspect.stack()) + 100)
    if sys.version_info >= (3, 12):  # json's own recursion no longer counts
        assert ours(content)
        return
    with pytest.raises(HeaderError, match="the stack that is left"):
        ours(content)


def test_exhausted_memory_is_a_header_error(monkeypatch):
    def exhausted(text, **options):
        raise MemoryError

    monkeypatch.setattr(header_module, "read_document", exhausted)
    with pytest.raises(HeaderError, match="more memory than there is"):
        ours(one())


@st.composite
def saved_files(draw):
    dtypes = st.sampled_from([np.uint8, np.int16, np.float16, np.float32, np.int64, np.bool_])
    shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
    arrays = st.builds(np.zeros, shapes, dtypes)
    names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
    metadata = st.none() | st.dictionaries(names, names, min_size=1, max_size=3)
    return save(draw(st.dictionaries(names, arrays, max_size=6)), draw(metadata))


@given(saved_files())
def test_what_the_reference_saves_is_read_as_the_reference_reads_it(content):
    assert ours(content) == reference(content)


LAYOUTS = [{"separators": (",", ":")}, {}, {"indent": 1}, {"ensure_ascii": False}]


@given(saved_files(), st.lists(st.sampled_from(LAYOUTS), min_size=7, max_size=7), st.sampled_from([",", ", ", " ,\n"]))
def test_layout_does_not_change_the_meaning(content, layouts, separator):
    saved = parse_header(content, len(content), uri=URI)
    members = json.loads(content[8 : saved.data_begin]).items()
    pairs = zip(members, layouts, strict=False)
    written = [json.dumps({name: value}, **layout)[1:-1].strip() for (name, value), layout in pairs]
    rewritten = file_of("{" + separator.join(written) + "}", content[saved.data_begin :])
    assert ours(rewritten) == ours(content)
    assert parse_header(rewritten, len(rewritten), uri=URI).metadata == saved.metadata


PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\",
    b"\\u0061",
    b"\\ud800",
    b"-",
    b"-0",
    b"1.0",
    b"e",
    b" ",
    b"\n",
]
PIECES += [b"\0", b"\xff", b"0", b"99999999999999999999", b"null", b'"a":', b"__metadata__", ONE.encode(), b'"x":1,']


@settings(max_examples=500)
@given(
    st.one_of(saved_files(), st.sampled_from(list(READ_BY_BOTH.values())).filter(lambda content: len(content) < 500)),
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES) | st.binary(max_size=4)), max_size=4
    ),
    st.booleans(),
)
def test_a_mutated_file_is_refused_or_read_as_the_reference_reads_it(content, edits, repair_length):
    for place, removed, inserted in edits:
        position = int(place * len(content))
        content = content[:position] + inserted + content[position + removed :]
    if repair_length and b"}" in content[8:]:
        end = content.rindex(b"}") + 1
        content = pack("<Q", end - 8) + content[8:]
    try:
        accepted = ours(content)
    except (HeaderError, TruncatedError):
        return
    assert accepted == reference(content)
