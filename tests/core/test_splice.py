"""Asking for usage, or naming a rank, changes a few bytes and nothing else, whatever the body looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.prompt import Unreadable, read
from ramjet.core.splice import Buffers, ask_for_usage, name_rank

KEY = '"stream_options"'
ESCAPED_KEY = '"stream\\u005foptions"'


def splice(body: bytes, endpoint: str = "chat") -> bytes | None:
    return joined(ask_for_usage(body, read(body, endpoint), endpoint))


def joined(buffers: Buffers | None) -> bytes | None:
    return None if buffers is None else b"".join(buffers)


def chat(*fields: str, before: str = '"messages":[]') -> bytes:
    return ("{" + ",".join((before, '"stream":true', *fields)) + "}").encode()


def changed(body: bytes, spliced: bytes) -> tuple[bytes, bytes]:
    """The bytes that went and the bytes that came, between what both have at their front and at their end."""
    front = 0
    while front < min(len(body), len(spliced)) and body[front] == spliced[front]:
        front += 1
    back = 0
    while back < min(len(body), len(spliced)) - front and body[-1 - back] == spliced[-1 - back]:
        back += 1
    return body[front : len(body) - back], spliced[front : len(spliced) - back]


def without_options(body: bytes) -> list[tuple[str, Any]]:
    """All other fields in their order, those that are given twice included."""
    pairs: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list)
    return [(name, value) for name, value in pairs if name != "stream_options"]


def assert_only_asks(body: bytes, spliced: bytes) -> None:
    """What came is a request for usage, what went is at most a null, and every other byte is where it was."""
    gone, come = changed(body, spliced)
    assert len(spliced) - len(body) == len(come) - len(gone) <= len(b'"stream_options":{"include_usage":true},')
    assert gone in {b"", b"null"}
    options = json.loads(body).get("stream_options")
    assert json.loads(spliced) == {**json.loads(body), "stream_options": {"include_usage": True, **(options or {})}}
    assert without_options(spliced) == without_options(body)


# -- each kind of stream_options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "spliced"),
    [
        ("{}", '{"include_usage":true}'),
        ("{ }", '{"include_usage":true }'),
        ("null", '{"include_usage":true}'),
        ('{"continuous_usage_stats":true}', '{"include_usage":true,"continuous_usage_stats":true}'),
        ('{ "continuous_usage_stats" : true }', '{"include_usage":true, "continuous_usage_stats" : true }'),
        ('{"a":1e3,"b":1.0}', '{"include_usage":true,"a":1e3,"b":1.0}'),
    ],
)
@pytest.mark.parametrize("colon", [":", " : ", ":\n\t"])
def test_usage_is_asked_for_beside_other_options(options: str, spliced: str, colon: str) -> None:
    """
    Options without a word about usage get one; the client's own stay as they are.
    """
    body = chat(f"{KEY}{colon}{options}", '"n":1')

    assert splice(body) == chat(f"{KEY}{colon}{spliced}", '"n":1')


def test_usage_is_asked_for_where_there_are_no_options() -> None:
    """
    The field goes to the front, where finding its place needs no parsing.
    """
    assert splice(chat()) == b'{"stream_options":{"include_usage":true},' + chat()[1:]
    assert splice(b" \n" + chat() + b"\n") == b' \n{"stream_options":{"include_usage":true},' + chat()[1:] + b"\n"


@pytest.mark.parametrize("said", ["true", "false", "null", "1", '"yes"'])
@pytest.mark.parametrize("more", ["", ',"continuous_usage_stats":true'])
def test_who_said_what_they_want_gets_that(said: str, more: str) -> None:
    """
    Yes needs no asking, and no is no.
    """
    assert splice(chat(f'{KEY}:{{"include_usage":{said}{more}}}')) is None


@pytest.mark.parametrize("odd", ["true", "7", '"x"', "[]", "[{}]"])
def test_options_that_are_none_are_left_to_the_engine(odd: str) -> None:
    """
    What the engine will refuse is not mended.
    """
    assert splice(chat(f"{KEY}:{odd}")) is None


@pytest.mark.parametrize("options", ["{}", "null"])
def test_an_escaped_key_is_never_given_a_second_time(options: str) -> None:
    """
    The key may be spelled so that no search finds it: then nothing is asked, and nothing broken.
    """
    assert splice(chat(f"{ESCAPED_KEY}:{options}")) is None


@pytest.mark.parametrize(
    "decoy",
    [
        '"messages":[{"role":"user","content":"x","stream_options":{}}]',
        '"messages":[{"role":"user","content":"x","stream_options" : null}]',
        '"messages":[{"role":"user","content":"\\"stream_options\\":null, \\"stream_options\\":{}"}]',
        '"tools":[{"parameters":{"properties":{"stream_options":{"type":"object"}}}}],"messages":[]',
        '"messages":[],"metadata":{"stream_options":{"stream_options":{}}}',
    ],
)
@pytest.mark.parametrize("options", ["{}", "null", '{"continuous_usage_stats":true}'])
@pytest.mark.parametrize("first", [True, False])
def test_only_the_key_at_the_top_counts(decoy: str, options: str, first: bool) -> None:
    """
    The same name inside a message, a tool or a text is neither asked nor touched.
    """
    body = chat(f"{KEY}:{options}", before=decoy) if first else chat(f"{KEY}:{options}", decoy, before='"user":"u"')

    spliced = splice(body)

    assert spliced is not None
    assert_only_asks(body, spliced)
    assert decoy.encode() in spliced


@pytest.mark.parametrize(
    ("given", "asks"),
    [
        ((f"{KEY}:{{}}", f"{KEY}:{{}}"), True),
        ((f"{KEY}:null", f"{KEY}:{{}}"), True),
        ((f"{KEY}:{{}}", f"{KEY}:null"), True),
        ((f'{KEY}:{{"include_usage":false}}', f"{KEY}:null"), True),
        ((f"{KEY}:null", f'{KEY}:{{"include_usage":false}}'), False),
        ((f"{ESCAPED_KEY}:null", f"{KEY}:{{}}"), True),
        ((f"{KEY}:{{}}", f"{ESCAPED_KEY}:null"), False),
    ],
)
def test_of_a_key_given_twice_the_last_counts(given: tuple[str, str], asks: bool) -> None:
    """
    That is the one engines read.
    """
    body = chat(*given)

    spliced = splice(body)

    assert (spliced is not None) is asks
    if spliced is not None:
        assert_only_asks(body, spliced)


def test_a_body_full_of_the_key_is_searched_for_a_while_only() -> None:
    """
    Hostile input costs a few readings, not thousands.
    """
    decoys = ",".join(['{"stream_options":{}}'] * 10_000)
    body = chat(f"{KEY}:{{}}", before=f'"messages":[],"metadata":[{decoys}]')

    assert splice(body) is None


def test_nesting_at_the_interpreters_limit_is_never_an_error() -> None:
    """
    A body that could just be read is searched a few calls deeper: then nothing is asked, and the request goes on.
    """
    for depth in range(850, 1_000):
        body = chat(f"{KEY}:{{}}", before='"messages":[],"metadata":' + "[" * depth + "]" * depth)
        try:
            prompt = read(body, "chat")
        except Unreadable:
            break
        spliced = joined(ask_for_usage(body, prompt, "chat"))
        assert spliced in {None, body.replace(b"{}", b'{"include_usage":true}')}


# -- anything around it -----------------------------------------------------------------------------------------------

SPACE = st.sampled_from(("", "", " ", "\n", "\t ", "\r\n  "))
VALUES = st.sampled_from(
    (
        "1.0", "1e3", "-0.0", "12345678901234567890", '"é"', '"\\u00e9\\n"', '"汉"', "[]", "{}", "null", "true",
        '{"stream_options":null}', '{"stream_options" : {}}', '[{"stream_options":{"include_usage":true}}]',
        '"{\\"stream_options\\":{}}"', '{"b":1,"a":[1.50,2E+2]}', '"\\/"',
    )
)  # fmt: skip
OPTIONS = st.sampled_from(
    ("{}", "{ }", "null", '{"include_usage":true}', '{"include_usage":false}', '{"include_usage":null}',
     '{"continuous_usage_stats":true}', '{"x":{"stream_options":{}}}', '{"n":12345678901234567890,"f":1.0}', "[]")
)  # fmt: skip


@st.composite
def written(draw: st.DrawFn) -> tuple[str, bytes]:
    """A body as some client wrote it: any order, spacing and spelling, keys inside keys, keys twice."""
    endpoint = draw(st.sampled_from(("chat", "completions")))
    prompt = ('"messages"', '[{"role":"user","content":"é 汉"}]') if endpoint == "chat" else ('"prompt"', '"é"')
    fields = [prompt, ('"stream"', "true")]
    fields += [(f'"{name}"', draw(VALUES)) for name in draw(st.lists(st.sampled_from("abé"), max_size=3))]
    keys = st.sampled_from((KEY, KEY, KEY, ESCAPED_KEY))
    fields += [(draw(keys), draw(OPTIONS)) for _ in range(draw(st.integers(0, 2)))]
    pairs = [
        f"{draw(SPACE)}{key}{draw(SPACE)}:{draw(SPACE)}{value}{draw(SPACE)}"
        for key, value in draw(st.permutations(fields))
    ]
    return endpoint, (draw(SPACE) + "{" + ",".join(pairs) + "}" + draw(SPACE)).encode()


@given(written())
@settings(max_examples=500)
def test_only_the_request_for_usage_comes_in(given: tuple[str, bytes]) -> None:
    """
    Every other byte stays where it was, and the body means the same, plus the request.
    """
    endpoint, body = given

    spliced = splice(body, endpoint)

    if spliced is not None:
        assert_only_asks(body, spliced)
        assert "include_usage" not in (json.loads(body).get("stream_options") or {})
        assert splice(spliced, endpoint) is None


@given(written())
@settings(max_examples=200)
def test_a_key_that_stands_once_and_plainly_is_always_found(given: tuple[str, bytes]) -> None:
    """
    Nothing is given up but what an escaped key, a second key or a crowd of decoys hides.
    """
    endpoint, body = given
    options = json.loads(body).get("stream_options", {})
    open_to_it = options is None or (isinstance(options, dict) and "include_usage" not in options)

    if open_to_it and ESCAPED_KEY.encode() not in body and body.count(KEY.encode()) <= 4:
        assert splice(body, endpoint) is not None


# -- what is left alone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["false", "null", "1", '"true"'])
def test_an_answer_in_one_piece_reports_usage_unasked(stream: str) -> None:
    """
    Engines refuse stream_options on requests that are no streams.
    """
    assert splice(f'{{"messages":[],"stream":{stream}}}'.encode()) is None
    assert splice(b'{"messages":[]}') is None


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("messages", b'{"messages":[],"stream":true}'),
        ("responses", b'{"input":"x","stream":true}'),
        ("generate", b'{"text":"x","stream":true}'),
    ],
)
def test_other_endpoints_report_usage_unasked(endpoint: str, body: bytes) -> None:
    """
    Anthropic, responses and SGLang's own endpoint have no such option.
    """
    assert splice(body, endpoint) is None


def test_completions_are_asked_as_chats_are() -> None:
    """
    Both of OpenAI's older endpoints know the option.
    """
    body = b'{"prompt":"x","stream":true}'

    spliced = splice(body, "completions")

    assert spliced is not None
    assert_only_asks(body, spliced)


def test_a_long_body_is_changed_in_one_place() -> None:
    """
    The seed's 1.2 MB conversation: 40 bytes more.
    """
    text = "wörter " * 150_000
    body = json.dumps({"messages": [{"role": "user", "content": text}], "stream": True}, ensure_ascii=False).encode()

    assert splice(body) == b'{"stream_options":{"include_usage":true},' + body[1:]


# -- the rank ---------------------------------------------------------------------------------------------------------

ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    fields=st.dictionaries(st.text(), ANYTHING),
    text=st.text(),
    rank=st.integers(0, 255),
    padding=st.sampled_from(("", " ", "\n\t ")),
)
def test_a_rank_is_one_field_more_and_nothing_else(fields: dict[str, Any], text: str, rank: int, padding: str) -> None:
    """
    Whatever else is in the body, its bytes stay as they are.
    """
    body = (padding + json.dumps({"text": text, **fields}, ensure_ascii=False) + padding).encode(errors="surrogatepass")

    spliced = b"".join(name_rank(body, rank, "generate"))

    gone, come = changed(body, spliced)
    assert (gone, len(come)) == (b"", len(spliced) - len(body))
    assert json.loads(spliced, object_pairs_hook=list) == [
        ("routed_dp_rank", rank), *json.loads(body, object_pairs_hook=list)
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["routed_dp_rank", "data_parallel_rank"])
def test_a_client_that_names_a_rank_in_its_body_has_its_way(name: str) -> None:
    """
    No field is given twice: which of two counts is anybody's guess.
    """
    body = json.dumps({"text": "hello", name: 3}).encode()

    assert name_rank(body, 1, "generate") == (body,)


def test_a_text_about_ranks_is_no_rank() -> None:
    """
    In a text the quotes are escaped.
    """
    body = json.dumps({"text": 'say "routed_dp_rank":3'}).encode()

    assert json.loads(b"".join(name_rank(body, 1, "generate")))["routed_dp_rank"] == 1


@pytest.mark.parametrize("endpoint", ["chat", "completions", "messages", "responses", "other"])
def test_where_a_header_says_it_the_body_stays_as_it_came(endpoint: str) -> None:
    """
    Only SGLang's own endpoint reads no header.
    """
    assert name_rank(b'{"prompt":"x"}', 1, endpoint) == (b'{"prompt":"x"}',)


def test_what_is_spliced_into_copies_nothing_of_a_long_body() -> None:
    """
    A field at the front leaves the rest of a megabyte where it is.
    """
    body = chat(before='"messages":[{"role":"user","content":"' + "x" * (1 << 20) + '"}]')

    front, rest = ask_for_usage(body, read(body, "chat"), "chat") or ()

    assert len(front) < 100
    assert isinstance(rest, memoryview)
    assert rest.obj is body
