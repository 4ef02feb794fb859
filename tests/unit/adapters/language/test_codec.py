"""Tokenizers: the pieces of a stream are the whole text, whatever bytes it is made of; chats go by the template."""

from __future__ import annotations

import json
import os
import threading
import weakref
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.support.errors import refusal
from tests.support.profiles import examples
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.language.byte_codec import BYTES, ByteCodec, byte_codec
from tfs_lite.adapters.language.codec import MAX_HELD, MOST_DIGESTED, Codec, MadeOfFiles, WindowStream, open_codec
from tfs_lite.adapters.language.family import load_library
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.core.generation import ChatPrompt
from tfs_lite.core.status import StatusCode

TEXTS = [
    "hello world",
    "  two  spaces ",
    "héllo ñ ß",
    "日本語のテキスト",
    "👩‍👩‍👧‍👦 🇩🇪 é",
    "a\x00b\r\n\tc",
    "</s> is written out",
    "\ufffd and \ufffd",
    "",
]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<s>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"
)
USER = ChatPrompt(({"role": "user", "content": "grüß 👋"},))


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["hello world, hello text", "grüße und テキスト", "日本語のテキスト 日本"] * 3
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens(["<name me>"])
    return tokenizer


def byte_fallback():
    """As the tokenizers of Llama 2 and Gemma are: words with a leading space, and bytes for what they do not know."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    for word in ["▁", "h", "e", "l", "o", "w", "r", "d", "he", "ll", "hell", "hello", "▁hello", "▁w"]:
        vocabulary[word] = len(vocabulary)
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello"), ("▁", "w")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


KINDS = {"byte level": byte_level(), "byte fallback": byte_fallback()}


def write(directory, tokenizer=None, template=None, **config):
    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        tokenizer.save(str(directory / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"} | config
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return read_version(str(directory))


def opened(directory, *args, **config):
    found = open_codec(write(directory, *args, **config))
    assert found is not None
    return found


def refused(code, directory, *args, **config):
    message = refusal(open_codec, write(directory, *args, **config), code=code)
    assert str(directory) not in message
    return message


def pieces(codec, tokens, skip=True):
    stream = codec.stream(skip)
    return [*(stream.push(token) for token in tokens), stream.flush()]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("kind", KINDS)
def test_text_comes_back_whole_and_in_pieces(kind, text):
    codec = Codec(KINDS[kind], None)
    tokens = codec.encode(text)
    for skip in (True, False):
        whole = codec.decode(tokens, skip)
        assert "".join(pieces(codec, tokens, skip)) == whole
    if kind == "byte level":
        assert whole == text


@pytest.mark.parametrize("kind", KINDS)
def test_piece_never_ends_within_a_character(kind):
    codec = Codec(KINDS[kind], None)
    text = "日本 👩‍👩‍👧"
    found = pieces(codec, codec.encode(text))
    assert "".join(found) == text
    assert not any("\ufffd" in piece for piece in found)
    assert found.count("") > 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", range(1, 12))
def test_text_that_goes_on_after_a_prompt_keeps_its_spaces(kind, cut):
    """Some vocabularies drop the space at the beginning of a text; a text that goes on has none."""
    codec = Codec(KINDS[kind], None)
    tokens = codec.encode("hello world hello hello hello")
    prompt, output = tokens[:cut], tokens[cut:]
    stream = codec.stream(True, prompt)
    told = "".join([*(stream.push(token) for token in output), stream.flush()])
    assert codec.decode(prompt) + told == codec.decode(tokens)


def test_special_tokens_are_left_out_unless_they_are_wanted():
    codec = Codec(KINDS["byte level"], None)
    tokens = codec.encode("a</s>b<name me>")
    assert "".join(pieces(codec, tokens)) == codec.decode(tokens) == "ab<name me>"
    assert "".join(pieces(codec, tokens, skip=False)) == codec.decode(tokens, False) == "a</s>b<name me>"


@examples(300)
@given(st.lists(st.integers(0, KINDS["byte level"].get_vocab_size() + 5), max_size=40), st.booleans())
def test_any_tokens_of_a_byte_level_vocabulary_stream_as_they_decode(tokens, skip):
    codec = Codec(KINDS["byte level"], None)
    assert "".join(pieces(codec, tokens, skip)) == codec.decode(tokens, skip)


@examples(300)
@given(st.lists(st.integers(0, KINDS["byte fallback"].get_vocab_size() + 5), max_size=40))
def test_no_tokens_of_a_fallback_vocabulary_break_a_stream(tokens):
    codec = Codec(KINDS["byte fallback"], None)
    told = "".join(pieces(codec, tokens))
    whole = codec.decode(tokens)
    if "\ufffd" not in whole:
        assert told == whole


def test_stream_of_lone_bytes_goes_on_and_recovers():
    """The streams of the tokenizers library fail here, at each token from then on."""
    codec = Codec(KINDS["byte fallback"], None)
    byte = {number: 3 + number for number in range(256)}
    tokens = [byte[0x41], byte[0xE2], byte[0x42], *codec.encode("hello"), *[byte[0x80]] * 30, *codec.encode(" w")]
    found = pieces(codec, tokens)
    text = "".join(found)
    assert text.startswith("A")
    assert "hello" in text
    assert text.endswith("w")
    longest = max(len(run) for run in "".join("." if piece else " " for piece in found).split("."))
    assert longest < MAX_HELD


def test_stream_looks_at_few_tokens_however_long_the_text_is():
    looked = []

    def decode(tokens):
        looked.append(len(tokens))
        return "\ufffd" * len(tokens)

    stream = WindowStream(decode)
    for token in range(200):
        stream.push(token)
    assert max(looked) <= 2 * MAX_HELD


def test_bytes_of_a_token_are_those_it_stands_for():
    codec = Codec(KINDS["byte level"], None)
    for text in TEXTS:
        assert b"".join(map(codec.token_bytes, codec.encode(text))) == text.encode()
    assert codec.token_bytes(10_000) == b""
    fallback = Codec(KINDS["byte fallback"], None)
    assert fallback.token_bytes(3 + 0xE2) == b"\xe2"
    assert b"".join(map(fallback.token_bytes, fallback.encode("hello 日"))) == " hello 日".encode()
    assert fallback.token_bytes(2) == b"</s>"


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_character_cannot_be_encoded(kind):
    assert "surrogate" in refusal(Codec(KINDS[kind], None).encode, "a\ud800")


def test_many_threads_encode_and_decode_at_once(tmp_path):
    codec, _ = opened(tmp_path, KINDS["byte level"], TEMPLATE)
    expected = (codec.encode("grüße"), codec.chat(USER))
    found = []

    def work():
        found.extend((codec.encode("grüße"), codec.chat(USER)) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 200


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_of_a_version_answers_as_its_library_does(tmp_path, kind):
    codec, end = opened(tmp_path, KINDS[kind])
    reference = load_library().AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    assert end == KINDS[kind].token_to_id("</s>")
    for text in TEXTS:
        assert codec.encode(text) == reference(text)["input_ids"]
    assert not codec.has_chat_template


def test_prompt_gets_the_special_tokens_around_it_and_a_chat_does_not(tmp_path):
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    codec, _ = opened(tmp_path, tokenizer, "{{ messages[0].content }}")
    assert codec.encode("hello")[0] == 0
    assert codec.chat(ChatPrompt(({"role": "user", "content": "hello"},))) == codec.encode("hello")[1:]


def test_length_that_the_tokenizer_was_saved_with_cuts_no_prompt(tmp_path):
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=500)
    codec, _ = opened(tmp_path, tokenizer)
    text = "hello " * 20
    tokens = codec.encode(text)
    assert codec.decode(tokens) == text
    assert 20 <= len(tokens) < 200


@pytest.mark.parametrize("where", ["file", "config"])
def test_chat_template_leads_up_to_the_assistant(tmp_path, where):
    given_template = {"template": TEMPLATE} if where == "file" else {"chat_template": TEMPLATE}
    codec, _ = opened(tmp_path, KINDS["byte level"], **given_template)
    assert codec.has_chat_template
    tokens = codec.chat(USER)
    assert codec.decode(tokens, False) == "<s>user: grüß 👋\n<s>assistant:"
    assert tokens.count(KINDS["byte level"].token_to_id("<s>")) == 2


@pytest.mark.parametrize(
    ("template", "role", "words"),
    [
        (TEMPLATE, "tool", "no tools here"),
        (None, "user", "no chat template"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "user", "refuses them"),
    ],
    ids=["refused", "no template", "out of the sandbox"],
)
def test_chat_that_cannot_be_rendered_is_the_callers_fault(tmp_path, template, role, words):
    codec, _ = opened(tmp_path, KINDS["byte level"], template)
    assert words in refusal(codec.chat, ChatPrompt(({"role": role, "content": "x"},)))


BROKEN = {
    "never closed": "{% for m in messages %}never closed",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x",
    "doubles": "{% set ns=namespace(s='aa') %}{% for a in range(60) %}{% set ns.s=ns.s+ns.s %}{% endfor %}{{ns.s}}",
    "long": "{{ 'a' * 8000000000 }}",
    "longer than is of use": "{{ 'a' * 5000000 }}",
}


@pytest.mark.parametrize(
    ("name", "of_bytes"),
    [
        *((name, False) for name in BROKEN),
        *((name, True) for name in BROKEN if name != "loops"),
        pytest.param("loops", True, marks=pytest.mark.load),  # seconds of processor time, and the same path
    ],
)
def test_template_that_is_broken_or_has_no_end_fails_the_load_and_nothing_else(tmp_path, name, of_bytes):
    given_files = {"tokenizer_class": "ByteTokenizer"} if of_bytes else {}
    tokenizer = None if of_bytes else KINDS["byte level"]
    message = refused(StatusCode.FAILED_PRECONDITION, tmp_path, tokenizer, BROKEN[name], **given_files)
    assert "chat template" in message
    assert any(words in message for words in ("come to an end", "memory", "is broken"))


def test_nothing_is_looked_for_outside(tmp_path, connections):
    codec, _ = opened(tmp_path, KINDS["byte fallback"], TEMPLATE, tokenizer_class="LlamaTokenizer")
    assert codec.decode(codec.encode("hello"), True) == "hello"
    assert connections == []


def test_loading_a_tokenizer_says_nothing_on_the_terminal(tmp_path, capfd):
    capfd.readouterr()
    opened(tmp_path, KINDS["byte level"], TEMPLATE)
    assert capfd.readouterr() == ("", "")


def test_version_without_a_tokenizer_has_none(tmp_path):
    assert open_codec(read_version(str(tmp_path))) is None


@pytest.mark.parametrize("content", ["", "{", '{"version": "1.0"}', "[]"])
def test_broken_tokenizer_fails_the_load(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    assert "tokenizer" in refused(StatusCode.FAILED_PRECONDITION, tmp_path)


def test_broken_tokenizer_config_and_one_without_a_vocabulary_fail_the_load(tmp_path):
    assert "vocabulary" in refused(StatusCode.FAILED_PRECONDITION, tmp_path, tokenizer_class="LlamaTokenizer")
    KINDS["byte level"].save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json" in refused(StatusCode.DATA_LOSS, tmp_path)


def test_tokenizer_with_code_of_its_own_is_refused_and_the_code_not_run(tmp_path):
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    auto_map = {"AutoTokenizer": ["mine.Mine", None]}
    assert "auto_map" in refused(
        StatusCode.PERMISSION_DENIED, tmp_path, KINDS["byte level"], tokenizer_class="Mine", auto_map=auto_map
    )
    assert not (tmp_path / "ran").exists()


def test_template_of_the_byte_tokenizer_knows_its_special_tokens(tmp_path):
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ eos_token }}"}
    codec, end = opened(tmp_path, tokenizer_class="ByteTokenizer", **config)
    assert codec.chat(USER) == [BYTES, BYTES + 1]
    assert end == BYTES + 1


SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<tool>"]}


@pytest.mark.parametrize("text", [text for text in TEXTS if "</s>" not in text], ids=range(len(TEXTS) - 1))
def test_byte_tokenizer_has_the_bytes_of_a_text(tmp_path, text):
    codec, end = opened(tmp_path, tokenizer_class="ByteTokenizer", **SPECIALS)
    assert codec.encode(text) == list(text.encode())
    assert codec.decode(codec.encode(text)) == text
    assert "".join(pieces(codec, codec.encode(text))) == text
    assert end == BYTES + 1


@examples(200)
@given(st.lists(st.integers(0, 262), max_size=40), st.booleans())
def test_any_tokens_of_the_byte_tokenizer_stream_as_they_decode(tokens, skip):
    codec, _ = byte_codec(SPECIALS, None)
    assert "".join(pieces(codec, tokens, skip)) == codec.decode(tokens, skip)
    assert b"".join(map(codec.token_bytes, tokens)).decode("utf-8", "replace") == codec.decode(tokens, False)


def test_byte_tokenizer_recognises_its_special_tokens():
    codec, _ = byte_codec({**SPECIALS, "add_bos_token": True}, None)
    tokens = codec.encode("a</s>b<tool>")
    assert tokens == [BYTES, ord("a"), BYTES + 1, ord("b"), BYTES + 2]
    assert codec.decode(tokens) == "ab"
    assert codec.decode(tokens, False) == "<s>a</s>b<tool>"
    assert ByteCodec(()).encode("</s>") == list(b"</s>")
    assert ByteCodec(("<a>", "<a><b>")).encode("<a><b>") == [BYTES + 1], "the longest one"


def test_byte_tokenizer_has_chats(tmp_path):
    codec, _ = opened(tmp_path, tokenizer_class="ByteTokenizer", chat_template=TEMPLATE, **SPECIALS)
    assert codec.decode(codec.chat(USER), False) == "<s>user: grüß 👋\n<s>assistant:"
    assert "no tools here" in refusal(codec.chat, ChatPrompt(({"role": "tool", "content": "x"},)))
    assert "surrogate" in refusal(codec.encode, "\udfff")


@pytest.mark.parametrize(
    ("field", "value"),
    [("bos_token", 7), ("eos_token", ""), ("additional_special_tokens", "x"), ("additional_special_tokens", [1])],
)
def test_byte_tokenizer_with_strange_special_tokens_fails_the_load(tmp_path, field, value):
    files = {"tokenizer_class": "ByteTokenizer", field: value}
    assert field in refused(StatusCode.DATA_LOSS, tmp_path, **files)


class Made:
    """Something that is made of files, and counts itself."""


def files_of(directory: Path, **contents: str) -> VersionFiles:
    for name, content in contents.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return read_version(str(directory))


def test_versions_with_the_same_files_but_weights_share_what_is_made_of_them(tmp_path: Path) -> None:
    shared = MadeOfFiles[Made]()
    first = files_of(tmp_path / "1", **{"tokenizer.json": "a", "model.safetensors": "x", "more__b.json": "b"})
    second = files_of(tmp_path / "2", **{"tokenizer.json": "a", "model.safetensors": "y", "more__b.json": "b"})
    made = shared.of(first, Made, 5)
    assert shared.of(second, Made, 5) is made
    assert shared.of(second, Made, 6) is not made


@pytest.mark.parametrize(
    "other",
    [
        {"tokenizer.json": "A", "more__b.json": "b"},
        {"tokenizer.jsom": "a", "more__b.json": "b"},
        {"tokenizer.json": "a", "more__b.json": "B"},
        {"tokenizer.json": "a", "more__c.json": "b"},
        {"tokenizer.json": "a", "more__b.json": "b", "merges.txt": ""},
        {"tokenizer.json": "b", "more__b.json": "a"},
    ],
    ids=str,
)
def test_version_with_other_files_shares_nothing(tmp_path: Path, other: dict[str, str]) -> None:
    shared = MadeOfFiles[Made]()
    made = shared.of(files_of(tmp_path / "1", **{"tokenizer.json": "a", "more__b.json": "b"}), Made)
    assert shared.of(files_of(tmp_path / "2", **other), Made) is not made


def test_nothing_is_shared_of_files_that_change_while_it_is_made(tmp_path: Path) -> None:
    shared = MadeOfFiles[Made]()
    files, others = files_of(tmp_path / "1", a="a"), files_of(tmp_path / "2", a="a")

    def make() -> Made:
        (tmp_path / "1" / "a").write_text("b")
        return Made()

    made = shared.of(files, make)
    assert shared.of(others, Made) is not made
    assert shared.of(files, Made) is not made


def test_nothing_is_shared_of_what_is_no_plain_file_or_too_large(tmp_path: Path) -> None:
    shared = MadeOfFiles[Made]()
    files = files_of(tmp_path / "1", a="a")
    os.truncate(tmp_path / "1" / "a", MOST_DIGESTED + 1)
    assert shared.of(files, Made) is not shared.of(files, Made)
    files = files_of(tmp_path / "2", a="a")
    os.mkfifo(tmp_path / "2" / "b")
    assert shared.of(files, Made) is not shared.of(files, Made)


def test_what_is_shared_goes_with_its_last_user(tmp_path: Path) -> None:
    shared = MadeOfFiles[Made]()
    files = files_of(tmp_path, a="a")
    made = shared.of(files, Made)
    gone = weakref.ref(made)
    del made
    assert gone() is None
    assert isinstance(shared.of(files, Made), Made)
