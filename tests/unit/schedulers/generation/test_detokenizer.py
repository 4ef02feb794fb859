"""Words of tokens that come one by one: whatever the cut, the text is that of all tokens, up to the stop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.language.byte_codec import BEGIN, END, ByteCodec
from tfs_lite.core.generation import Finish, Generation
from tfs_lite.schedulers.generation.detokenizer import Detokenizer, DetokenizerOutput, StopFinder

EOS = frozenset({END})
CODEC = ByteCodec()
SMALL = st.text("ab€", max_size=30)
STOPS = st.lists(st.text("ab€", min_size=1, max_size=5), min_size=1, max_size=4)


def detokenizer(
    limit: int = 100, prompt: Sequence[int] = (BEGIN,), codec: ByteCodec | None = CODEC, **wanted
) -> Detokenizer:
    return Detokenizer(Generation(prompt, **wanted), prompt, limit, EOS, codec)


def push_all(found: Detokenizer, tokens: Sequence[int]) -> tuple[str, DetokenizerOutput]:
    """All the text up to the end, and what the last token said."""
    text = ""
    output = DetokenizerOutput()
    for token in tokens:
        output = found.push(token)
        text += output.text
        if output.finish is not None:
            break
    return text, output


def first_stop(text: str, stops: Sequence[str]) -> str | None:
    """By looking at every character: the longest of the stops that end first."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return max(ending, key=len)
    return None


@given(st.text(max_size=40), st.integers(0, 3))
@example("a👩‍👩‍👧b", 0)
@example("é€", 2)
def test_pieces_together_are_the_whole_decode_however_it_ends(text: str, lost: int) -> None:
    tokens = list(text.encode())
    tokens = tokens[: len(tokens) - lost]  # the last character may be incomplete
    by_limit, output = push_all(detokenizer(limit=len(tokens)), tokens)
    assert by_limit == CODEC.decode(tokens)
    assert output.finish is (Finish.LENGTH if tokens else None)
    by_end, output = push_all(detokenizer(), [*tokens, END])
    assert by_end == CODEC.decode(tokens)
    assert (output.finish, output.stop) == (Finish.STOP, END)


def test_character_is_held_back_until_its_last_byte() -> None:
    found = detokenizer()
    assert [found.push(byte).text for byte in "a€".encode()] == ["a", "", "", "€"]


@given(SMALL, STOPS, st.lists(st.integers(1, 4)), st.booleans())
@example("aab", ["ab"], [], False)
@example("xab", ["ab", "xab"], [], False)
@example("abab€", ["abab€", "bab"], [2], True)
def test_stop_is_found_wherever_the_text_is_cut(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    finder = StopFinder(stops, include)
    let_go, found, rest = "", None, text
    for size in [*cuts, *[1] * len(text)]:
        part, rest = rest[:size], rest[size:]
        more, found = finder.push(part)
        let_go += more
        if found is not None:
            break
        longest = max(
            (
                size
                for stop in stops
                for size in range(len(stop))
                if text[: len(text) - len(rest)].endswith(stop[:size])
            ),
            default=0,
        )
        assert len(finder.held) == longest, "no more and no less than what may become a stop"
    assert found == first_stop(text, stops)
    if found is None:
        assert let_go + finder.held == text
    else:
        assert let_go == text[: text.index(found)] + (found if include else "")


@given(SMALL, STOPS, st.integers(1, 60))
def test_text_with_stops_is_that_before_the_first_stop(text: str, stops: list[str], limit: int) -> None:
    tokens = list(text.encode())[:limit]
    whole = CODEC.decode(tokens)
    got, output = push_all(detokenizer(limit, stop=tuple(stops)), tokens)
    stop = first_stop(whole, stops)
    if stop is not None:
        assert (output.finish, output.stop) == (Finish.STOP, stop)
        assert got == whole[: whole.index(stop)]
    elif len(tokens) == limit:
        assert (output.finish, output.stop) == (Finish.LENGTH, None)
        assert got == whole
    else:
        assert output.finish is None
        assert whole.startswith(got)


ENDS = {
    "a stop that the last allowed token completes": ({"limit": 3, "stop": ("bc",)}, b"abc", "a", Finish.STOP, "bc"),
    "a stop that is part of the text": ({"stop": ("bc",), "include_stop": True}, b"abcd", "abc", Finish.STOP, "bc"),
    "a stop token": ({"stop_token_ids": (98,)}, b"ab", "a", Finish.STOP, 98),
    "an ignored end of text": ({"limit": 3, "ignore_eos": True}, [97, END, 98], "ab", Finish.LENGTH, None),
    "special tokens that are wanted": (
        {"limit": 3, "ignore_eos": True, "skip_special_tokens": False},
        [97, END, 98],
        "a</s>b",
        Finish.LENGTH,
        None,
    ),
    "a stop that is complete too soon": ({"min_tokens": 4, "stop": ("ab",)}, b"ababab", "ab", Finish.STOP, "ab"),
    "a stop after enough tokens": ({"min_tokens": 3, "stop": ("ab",)}, b"abcab", "abc", Finish.STOP, "ab"),
    "the limit": ({"limit": 1}, b"a", "a", Finish.LENGTH, None),
    "the limit without characters": ({"limit": 1}, [BEGIN], "", Finish.LENGTH, None),
}


@pytest.mark.parametrize(("wanted", "tokens", "text", "finish", "stop"), ENDS.values(), ids=ENDS)
def test_text_ends_as_it_is_asked_to(wanted, tokens, text, finish, stop) -> None:
    found = detokenizer(**wanted)
    got, output = push_all(found, tokens)
    assert (got, output.finish, output.stop) == (text, finish, stop)
    assert found.count <= len(tokens)


def test_stop_token_counts_as_output() -> None:
    found = detokenizer(stop_token_ids=(ord("b"),))
    push_all(found, b"ab")
    assert found.count == 2


def test_beginning_of_a_stop_is_let_go_when_the_text_ends() -> None:
    found = detokenizer(limit=3, stop=("bcd",))
    assert [found.push(byte).text for byte in b"abc"] == ["a", "", "bc"]


def test_end_of_text_comes_before_stop_tokens_and_the_limit() -> None:
    assert detokenizer(limit=1, stop_token_ids=(END,)).push(END) == DetokenizerOutput("", Finish.STOP, END)


def test_ends_are_banned_until_there_are_enough_tokens() -> None:
    found = detokenizer(min_tokens=2, stop_token_ids=(7,))
    assert found.banned == {END, 7}
    found.push(97)
    assert found.banned == {END, 7}
    found.push(97)
    assert found.banned == frozenset()
    assert detokenizer(stop_token_ids=(7,)).banned == frozenset()


def test_echo_opens_with_the_words_of_the_prompt() -> None:
    assert detokenizer(prompt=CODEC.encode("hé"), echo=True).prompt_text == "hé"
    assert detokenizer(prompt=CODEC.encode("hé")).prompt_text == ""


def test_without_a_tokenizer_there_are_only_ends() -> None:
    found = detokenizer(limit=2, codec=None, echo=True)
    assert (found.prompt_text, found.push(5), found.push(6)) == (
        "",
        DetokenizerOutput(),
        DetokenizerOutput("", Finish.LENGTH),
    )


def test_hostile_stops_cost_little_per_character() -> None:
    finder = StopFinder(("a" * 999 + "b",))
    assert finder.push("a" * 100_000)[0] == "a" * (100_000 - 999)
    assert finder.push("b") == ("", "a" * 999 + "b")
