"""TensorFlow Serving's JSON, by the cases of its own util/json_tensor_test.cc."""

import json

import numpy as np
import pytest

from keras_vit.serving import protos, rest
from keras_vit.serving.errors import Refused

pytestmark = pytest.mark.tensorflow_only

INT, FLOAT, DOUBLE, STRING = map(np.dtype, ("int32", "float32", "float64", "object"))
B64 = {"hello": {"b64": "aGVsbG8="}, "world": {"b64": "d29ybGQ="}}


def parsed(body, **dtypes):
    body = body if isinstance(body, str) else json.dumps(body)
    return rest.parse(body.encode(), lambda signature: dtypes)


# Body, dtypes, and the values that the test of the same name there expects.
ACCEPTED = {
    "SingleUnnamedTensor": (
        {"instances": [[1, 2], [3, 4], [5, 6]]},
        {"default": (INT, [[1, 2], [3, 4], [5, 6]])},
    ),
    "MixedInputForFloatTensor": (
        {"instances": [1, 2.0, 3, 4, 5.003, 0.007, 0.0]},
        {"default": (FLOAT, [1, 2, 3, 4, 5.003, 0.007, 0])},
    ),
    "SingleUnnamedTensorBase64Scalars": (
        {"instances": [B64["hello"], B64["world"]]},
        {"default": (STRING, [b"hello", b"world"])},
    ),
    "SingleUnnamedTensorBase64Lists": (
        {"instances": [[B64["hello"]], [B64["world"]]]},
        {"default": (STRING, [[b"hello"], [b"world"]])},
    ),
    "SingleNamedTensorBase64": (
        {"instances": [{"default": [[B64["hello"]], [B64["world"]]]}]},
        {"default": (STRING, [[[b"hello"], [b"world"]]])},
    ),
    "MultipleNamedTensor": (
        '{"instances": [{"i": [[1,2],[3,4]], "s": ["foo", "bar"], "f": [1.0, NaN]},'
        '{"i": [[7,8],[9,0]], "s": ["baz", "bat"], "f": [2.0, Infinity]}]}',
        {
            "i": (INT, [[[1, 2], [3, 4]], [[7, 8], [9, 0]]]),
            "s": (STRING, [[b"foo", b"bar"], [b"baz", b"bat"]]),
            "f": (FLOAT, [[1.0, np.nan], [2.0, np.inf]]),
        },
    ),
    "SingleUnnamedTensorColumnarFormat": (
        {"inputs": [[[1, 2], [3, 4], [5, 6]]]},
        {"int_tensor": (INT, [[[1, 2], [3, 4], [5, 6]]])},
    ),
    "MultipleNamedTensorColumnarFormat": (
        {"inputs": {"i": [[1, 2]], "s": ["foo", "bar"], "b": B64["hello"]}},
        {
            "i": (INT, [[1, 2]]),
            "s": (STRING, [b"foo", b"bar"]),
            "b": (STRING, b"hello"),
        },
    ),
}
REFUSED = {
    "no JSON": "",
    "cut": '{"instances": [',
    "not UTF-8": b'{"instances": ["\xff"]}',
    "deep": '{"instances": ' + "[" * 100_000,
    "a list": [1],
    "both": {"instances": [[1, 2]], "inputs": [[1, 2]]},
    "neither": {"signature_name": "x"},
    "signature 5": {"signature_name": 5, "instances": [[1, 2]]},
    "signature 0": {"signature_name": 0, "instances": [[1, 2]]},
    "70 dimensions": '{"instances": ' + "[" * 70 + "1" + "]" * 70 + "}",
    "no instances": {"instances": []},
    "instances no list": {"instances": {"default": 1}},
    "ragged": {"instances": [[1, 2], [3, 4], [5, 6, 7]]},
    "other depth": {"instances": [[1, 2], [3, 4], [[5, 6]]]},
    "value and list": {"instances": [1, [1]]},
    "value and object": {"instances": [1, {"default": 1}]},
    "other name": {"instances": [{"other": 1}]},
    "one name too many": {"inputs": {"default": [1], "other": [1]}},
    "a float": {"instances": [1.0]},
    "a text": {"instances": ["1"]},
    "a truth": {"instances": [True]},
    "null": {"instances": [None]},
    "bytes": {"instances": [B64["hello"]]},
    "too large": {"instances": [2**31]},
    "5,000 digits": '{"instances": [' + "9" * 5000 + "]}",
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case):
    body, expected = ACCEPTED[case]
    found = parsed(body, **{name: dtype for name, (dtype, _) in expected.items()})
    assert found.signature == "serving_default"
    assert found.by_row == ("instances" in json.dumps(body))
    for name, (dtype, values) in expected.items():
        assert found.inputs[name].dtype == dtype
        np.testing.assert_array_equal(
            found.inputs[name], np.asarray(values, dtype=dtype)
        )


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    body = REFUSED[case]
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    with pytest.raises(Refused, match=r"(?s)Expected .* Received: ") as refused:
        rest.parse(body, lambda signature: {"default": INT})
    assert refused.value.code == "INVALID_ARGUMENT"
    assert refused.value.http_status == 400
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "value",
    [{"b64": "a"}, {"b64": "a?=="}, {"b64": 1}, {"b64": "", "x": ""}, 1, None, ["a"]],
)
def test_no_bytes(value):
    with pytest.raises(Refused, match=r"Expected .* Received: "):
        parsed({"inputs": {"default": ["a", value]}}, default=STRING)


def test_a_double_too_large_for_a_float():
    with pytest.raises(Refused, match="fit float32"):
        parsed({"instances": [1e39]}, default=FLOAT)
    assert parsed({"instances": [1e39]}, default=DOUBLE).inputs["default"][0] == 1e39


def test_several_inputs_have_names():
    with pytest.raises(Refused, match=r"element 0 of 'instances' .*\['a', 'b'\]"):
        parsed({"instances": [1]}, a=INT, b=INT)


def test_the_signature_that_is_named():
    asked = []
    body = b'{"signature_name": "features", "instances": [1]}'
    rest.parse(body, lambda signature: asked.append(signature) or {"default": INT})
    assert asked == ["features"]


SCORES = np.array([[0.2, 0.8], [1.0, np.float32(1) / 3]], np.float32)
NAMES = np.array([[b"a", "é".encode()], [b"c", b"d"]], dtype=object)


def test_an_answer_by_row():
    told = json.loads(rest.answer({"classes": NAMES, "scores": SCORES}, by_row=True))
    first, second = told["predictions"]
    assert first == {"classes": ["a", "é"], "scores": [0.2, 0.8]}
    assert np.float32(second["scores"][1]) == SCORES[1, 1]


def test_an_answer_by_column():
    told = json.loads(rest.answer({"classes": NAMES, "scores": SCORES}, by_row=False))
    assert told["outputs"]["classes"] == [["a", "é"], ["c", "d"]]


def test_a_single_output_has_no_name():
    assert rest.answer({"x": SCORES[:1]}, True) == b'{"predictions": [[0.2, 0.8]]}'
    assert rest.answer({"x": SCORES[:1]}, False) == b'{"outputs": [[0.2, 0.8]]}'


def test_bytes_are_base64_and_numbers_may_be_none():
    told = rest.answer({"a_bytes": np.array([b"hello"], dtype=object)}, True)
    assert json.loads(told) == {"predictions": [B64["hello"]]}
    told = rest.answer({"x": np.array([np.nan, -np.inf], np.float32)}, True)
    assert told == b'{"predictions": [NaN, -Infinity]}'


def test_every_float_reads_back_to_its_bits():
    bits = np.random.default_rng(0).integers(0, 2**32, 10_000, dtype=np.uint32)
    floats = bits.view(np.float32)
    told = json.loads(rest.answer({"x": floats}, True))["predictions"]
    np.testing.assert_array_equal(np.array(told, np.float32), floats)


@pytest.mark.parametrize(
    ("dtype", "field"),
    [
        ("float32", "float_val"),
        ("float64", "double_val"),
        ("uint8", "int_val"),
        ("int64", "int64_val"),
        ("bool", "bool_val"),
        ("object", "string_val"),
    ],
)
def test_protos_keep_values_in_their_dtypes_field(dtype, field):
    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    value = np.array([[1, 0], [1, 1]]).astype(dtype)
    if dtype == "object":
        value = np.array([[b"a", b"\xff"], [b"", b"d"]], dtype=object)
    request = predict_pb2.PredictRequest()
    protos.fill(request.inputs, {"x": value})
    assert len(getattr(request.inputs["x"], field)) == 4
    back = predict_pb2.PredictRequest.FromString(request.SerializeToString())
    found = protos.parse(back, {"x": value.dtype})["x"]
    np.testing.assert_array_equal(found, value)


def _proto(**fields):
    from tensorflow.core.framework import tensor_pb2

    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    request = predict_pb2.PredictRequest()
    for length in fields.pop("shape"):
        request.inputs["x"].tensor_shape.dim.add(size=length)
    request.inputs["x"].MergeFrom(tensor_pb2.TensorProto(**fields))
    return request


@pytest.mark.parametrize(
    ("dtype", "request_fields"),
    [
        (FLOAT, {"dtype": 7, "shape": [1], "string_val": [b"a"]}),
        (FLOAT, {"dtype": 0, "shape": [1], "float_val": [1]}),
        (FLOAT, {"dtype": 999, "shape": [1], "float_val": [1]}),
        (FLOAT, {"dtype": 1, "shape": [-1], "float_val": [1]}),
        (FLOAT, {"dtype": 1, "shape": [2**62, 2**62], "float_val": [1]}),
        (FLOAT, {"dtype": 1, "shape": [2], "float_val": [1, 2, 3]}),
        (FLOAT, {"dtype": 1, "shape": [2], "tensor_content": b"abcde"}),
        (FLOAT, {"dtype": 1, "shape": [3], "tensor_content": b"abcd"}),
        (np.dtype("uint8"), {"dtype": 4, "shape": [1], "int_val": [300]}),
        (STRING, {"dtype": 7, "shape": [2**40], "string_val": [b"a"]}),
        (STRING, {"dtype": 7, "shape": [2], "string_val": [b"a", b"b", b"c"]}),
    ],
)
def test_tensors_that_are_not_what_their_shape_says(dtype, request_fields):
    request = _proto(**request_fields)
    with pytest.raises(Refused, match=r"Expected .* Received: ") as refused:
        protos.parse(request, {"x": dtype}, max_bytes=2**20)
    assert refused.value.code == "INVALID_ARGUMENT"
