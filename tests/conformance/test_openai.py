"""OpenAI's own client, with threads and with asyncio: texts and chats, whole and in chunks, and its exceptions."""

import asyncio
from itertools import chain

import openai
import pytest

PATIENCE = 60.0
LENGTH = 512
"""Tokens that the models' context holds."""
LONG = 16_000
"""Tokens: many seconds of work for the model ``narrow``."""
HELLO = [{"role": "user", "content": "How are you?"}]
GREEDY = {"model": "writer", "temperature": 0}


@pytest.fixture(scope="module")
def options(language_server):
    """Of every client."""
    return {"base_url": f"{language_server.url}/openai/v1", "api_key": "any", "max_retries": 0, "timeout": PATIENCE}


@pytest.fixture(scope="module")
def client(options):
    with openai.OpenAI(**options) as one:
        yield one


@pytest.fixture(scope="module")
def run(options):
    """``run(work)``: what ``await work(client)`` gives, with a client for asyncio."""

    def call(work):
        async def inside():
            async with openai.AsyncOpenAI(**options) as one:
                return await work(one)

        return asyncio.run(inside())

    return call


class Sent(list):
    """The requests that a client has sent."""

    def on_second(self):
        """Called before the second one leaves."""

    def append(self, request):
        super().append(request)
        if len(self) == 2:
            self.on_second()


@pytest.fixture
def counting(options):
    """A client that tries again, and what it has sent."""
    sent = Sent()
    with (
        openai.DefaultHttpxClient(event_hooks={"request": [sent.append]}) as http,
        openai.OpenAI(**{**options, "max_retries": 2}, http_client=http) as one,
    ):
        yield one, sent


def text_of(chunks, index=0):
    """Of a choice of a completion."""
    return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == index)


def content_of(chunks):
    """Of a chat's only choice."""
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def counted(usage):
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


# Whole answers.


def test_completion_is_what_transformers_writes(client, answers):
    for answer in answers.values():
        found = client.completions.create(**GREEDY, prompt=answer.asked, max_tokens=len(answer.tokens))
        (choice,) = found.choices
        assert (choice.index, choice.text, choice.finish_reason) == (0, answer.text, "length")
        assert counted(found.usage) == (len(answer.prompt), 24, len(answer.prompt) + 24)
        assert (found.object, found.model, found.system_fingerprint) == ("text_completion", "writer", "writer:2")
        assert found.id.startswith("cmpl-")


def test_several_prompts_and_prompts_in_tokens(client, answers):
    for prompts in ([each.asked for each in answers.values()], [each.prompt for each in answers.values()]):
        found = client.completions.create(**GREEDY, prompt=prompts, max_tokens=24)
        assert [choice.text for choice in found.choices] == [each.text for each in answers.values()]
        assert found.usage.prompt_tokens == sum(len(each.prompt) for each in answers.values())


def test_chat_goes_through_the_template_of_the_model(client, chat_answer):
    found = client.chat.completions.create(**GREEDY, messages=HELLO, max_completion_tokens=24)
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content) == ("assistant", chat_answer.text)
    assert (choice.finish_reason, choice.logprobs, choice.message.tool_calls) == ("length", None, None)
    assert counted(found.usage) == (len(chat_answer.prompt), 24, len(chat_answer.prompt) + 24)
    assert (found.object, found.id[:9]) == ("chat.completion", "chatcmpl-")


def test_both_names_for_the_most_tokens_mean_the_same(client, chat_answer):
    for limit in ({"max_tokens": 5}, {"max_completion_tokens": 5}):
        found = client.chat.completions.create(**GREEDY, messages=HELLO, **limit)
        assert (found.choices[0].message.content, found.usage.completion_tokens) == (chat_answer.text[:5], 5)


def test_limits_that_are_not_set(client, chat_answer):
    """OpenAI's defaults: 16 tokens of a completion, and of a chat as many as the context holds."""
    assert client.completions.create(**GREEDY, prompt="x").usage.completion_tokens == 16
    found = client.chat.completions.create(**GREEDY, messages=HELLO)
    assert found.choices[0].message.content.startswith(chat_answer.text)
    assert (found.usage.total_tokens, found.choices[0].finish_reason) == (LENGTH, "length")


def test_messages_of_every_role_and_of_parts(client):
    def tokens(*messages):
        found = client.chat.completions.create(**GREEDY, messages=messages, max_tokens=8)
        return found.usage.prompt_tokens, found.choices[0].message.content

    talk = ({"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "a\nb"}, *HELLO)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    newer = ({"role": "developer", "content": "Be brief."}, {"role": "assistant", "content": parts}, *HELLO)
    assert tokens(*talk) == tokens(*newer)
    assert tokens(*talk)[0] == len("^sBe brief.|aa|b|uHow are you?|a")


# Sampling.


def test_seed_makes_an_answer_repeatable(client):
    def text(seed):
        return client.completions.create(model="writer", prompt="x", max_tokens=32, seed=seed).choices[0].text

    assert text(7) == text(7) != text(8)


def test_choices_have_seeds_of_their_own(client):
    common = {"model": "writer", "prompt": "Say something", "max_tokens": 32, "temperature": 1.5}
    both = client.completions.create(**common, n=2, seed=40)
    assert [choice.index for choice in both.choices] == [0, 1]
    alone = [client.completions.create(**common, seed=seed).choices[0].text for seed in (40, 41)]
    assert [choice.text for choice in both.choices] == alone
    assert alone[0] != alone[1]
    assert counted(both.usage) == (14, 64, 78)


def test_greedy_answers_do_not_depend_on_the_company(run, answers):
    """Sixty requests at once, most of them drawn at random."""

    async def work(client):
        def ask(number):
            asked = list(answers)[number % len(answers)]
            how = GREEDY if number % 3 == 0 else {"model": "writer", "seed": number}
            return client.completions.create(**how, prompt=asked, max_tokens=24 if number % 3 == 0 else 5 + number % 40)

        return await asyncio.gather(*(ask(number) for number in range(60)))

    found = run(work)
    wanted = list(answers.values())
    for number in range(0, 60, 3):
        assert found[number].choices[0].text == wanted[number % len(wanted)].text


def test_values_beside_openais_go_in_the_extra_body(client, story):
    common = {"model": "writer", "prompt": story.asked, "max_tokens": 24}
    best = client.completions.create(**common, seed=1, extra_body={"top_k": 1})
    assert best.choices[0].text == story.text
    ids = client.completions.create(**common, temperature=0, extra_body={"return_token_ids": True})
    assert ids.choices[0].token_ids == story.tokens
    stopped = client.completions.create(**common, temperature=0, extra_body={"stop_token_ids": [story.tokens[4]]})
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == (story.text[:4], "stop")
    assert stopped.choices[0].stop_reason == story.tokens[4]


def test_bias_decides(client):
    """The end of the text is a token like others."""
    ended = client.completions.create(model="writer", prompt="x", logit_bias={"257": 100})
    assert (ended.choices[0].text, ended.choices[0].finish_reason) == ("", "stop")
    assert ended.usage.completion_tokens == 1
    same = client.completions.create(**GREEDY, prompt="x", logit_bias={str(ord("z")): 100}, max_tokens=6)
    assert same.choices[0].text == "zzzzzz"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_stop_ends_the_text_before_it(client, story, stream):
    stops = ["not there", story.text[9:12]]
    found = client.completions.create(**GREEDY, prompt=story.asked, stop=stops, max_tokens=24, stream=stream)
    chunks = list(found) if stream else [found]
    assert text_of(chunks) == story.text[:9]
    assert chunks[-1].choices[0].finish_reason == "stop"
    chat = client.chat.completions.create(**GREEDY, messages=HELLO, stop="\\", max_tokens=24)
    assert (chat.choices[0].message.content, chat.usage.completion_tokens) == ("o.KRn", 6)


# Log probabilities.


def test_log_probabilities_of_a_completion(client, story):
    found = client.completions.create(**GREEDY, prompt=story.asked, max_tokens=24, logprobs=3).choices[0].logprobs
    assert found.tokens == list(story.text)
    assert found.token_logprobs == pytest.approx(story.logprobs, abs=1e-3)
    assert [len(best) for best in found.top_logprobs] == [3] * 24
    assert all(best[token] == max(best.values()) for best, token in zip(found.top_logprobs, found.tokens, strict=True))
    assert found.text_offset == list(range(24))


def test_log_probabilities_of_a_chat(client, chat_answer):
    common = {**GREEDY, "messages": HELLO, "max_tokens": 24, "logprobs": True}
    (choice,) = client.chat.completions.create(**common, top_logprobs=2).choices
    found = choice.logprobs.content
    assert "".join(each.token for each in found) == chat_answer.text
    assert [each.bytes for each in found] == [[token] for token in chat_answer.tokens]
    assert [each.logprob for each in found] == pytest.approx(chat_answer.logprobs, abs=1e-3)
    assert all(each.top_logprobs[0].token == each.token and len(each.top_logprobs) == 2 for each in found)
    (choice,) = client.chat.completions.create(**common).choices
    assert [each.top_logprobs for each in choice.logprobs.content] == [[]] * 24


def test_echo_tells_the_prompt_and_how_likely_it_is(client, story):
    common = {**GREEDY, "prompt": story.asked, "echo": True}
    assert client.completions.create(**common, max_tokens=24).choices[0].text == story.asked + story.text
    scored = client.completions.create(**common, max_tokens=0, logprobs=0)
    found = scored.choices[0].logprobs
    assert (scored.choices[0].text, counted(scored.usage)) == (story.asked, (17, 0, 17))
    assert found.tokens == ["<s>", *story.asked]
    assert found.token_logprobs[0] is None
    assert max(found.token_logprobs[1:]) < 0
    written = client.completions.create(**{**common, "prompt": story.asked + story.text}, max_tokens=0, logprobs=0)
    assert written.choices[0].logprobs.token_logprobs[17:] == pytest.approx(story.logprobs, abs=1e-3)


# Streams.


@pytest.mark.parametrize("usage", [False, True], ids=["without usage", "with usage"])
def test_stream_of_a_completion(client, answers, usage):
    options = {"stream_options": {"include_usage": True}} if usage else {}
    for answer in answers.values():
        chunks = list(client.completions.create(**GREEDY, prompt=answer.asked, max_tokens=24, stream=True, **options))
        assert text_of(chunks) == answer.text
        assert len({chunk.id for chunk in chunks}) == 1
        usages = [chunk.usage for chunk in chunks]
        assert usages[:-1] == [None] * (len(chunks) - 1)
        if usage:
            expected = (len(answer.prompt), 24, len(answer.prompt) + 24)
            assert (chunks.pop().choices, counted(usages[-1])) == ([], expected)
        else:
            assert usages[-1] is None
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_stream_of_a_chat(client, chat_answer):
    common = {**GREEDY, "messages": HELLO, "max_tokens": 24, "stream": True}
    *chunks, last = client.chat.completions.create(**common, stream_options={"include_usage": True})
    assert content_of(chunks) == chat_answer.text
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert (last.choices, counted(last.usage)) == ([], (16, 24, 40))


def test_the_clients_own_collector_of_streams(client, chat_answer):
    """It puts chunks together again, log probabilities included. It takes no text that was cut off."""
    common = {**GREEDY, "messages": HELLO, "max_tokens": 24, "stop": chat_answer.text[12:15]}
    with client.chat.completions.stream(**common, logprobs=True, stream_options={"include_usage": True}) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == chat_answer.text[:12]
    assert len(deltas) > 1
    assert [each.bytes[0] for each in final.choices[0].logprobs.content] == chat_answer.tokens[:15]
    assert (final.choices[0].finish_reason, final.usage.completion_tokens) == ("stop", 15)


def test_choices_in_one_stream_are_those_of_the_whole_answer(client):
    common = {"model": "writer", "prompt": ["a", "b"], "n": 2, "seed": 3, "max_tokens": 20, "logprobs": 1}
    whole = client.completions.create(**common)
    chunks = list(client.completions.create(**common, stream=True))
    for choice in whole.choices:
        assert text_of(chunks, choice.index) == choice.text
        mine = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        for name in ("tokens", "token_logprobs", "text_offset"):
            pieces = [getattr(each.logprobs, name) for each in mine]
            assert list(chain(*pieces)) == getattr(choice.logprobs, name)
    assert len({choice.text for choice in whole.choices}) == 4


def test_bytes_that_are_no_characters_are_the_same_whole_and_in_chunks(client):
    common = {"model": "bytes", "prompt": "ö", "temperature": 0, "max_tokens": 64}
    whole = client.completions.create(**common).choices[0].text
    assert "�" in whole
    assert text_of(client.completions.create(**common, stream=True)) == whole
    chat = {"logprobs": True, "max_tokens": 64, "temperature": 0, "model": "bytes"}
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(**chat, messages=HELLO)
    ids = client.completions.create(**common, extra_body={"return_token_ids": True}).choices[0].token_ids
    assert bytes(token for token in ids if token < 256).decode(errors="replace") == whole


def test_stream_that_is_closed_ends_its_text(client, language_server):
    asked = {"model": "narrow", "prompt": "x", "max_tokens": LONG, "stream": True}
    with language_server.ends("narrow", "cancelled"), client.completions.create(**asked) as stream:
        next(stream)
        assert language_server.metric("running", model="narrow") == 1


# With asyncio.


def test_asyncio_reads_whole_answers_and_streams(run, story, chat_answer):
    async def work(client):
        whole = await client.completions.create(**GREEDY, prompt=story.asked, max_tokens=24)
        stream = await client.completions.create(**GREEDY, prompt=story.asked, max_tokens=24, stream=True)
        chat = await client.chat.completions.create(**GREEDY, messages=HELLO, max_tokens=24, stream=True)
        return whole.choices[0].text, text_of([chunk async for chunk in stream]), content_of([c async for c in chat])

    assert run(work) == (story.text, story.text, chat_answer.text)


def test_asyncio_may_leave_in_mid_stream_or_while_it_waits(run, language_server):

    async def work(client):
        stream = await client.completions.create(model="narrow", prompt="x", max_tokens=LONG, stream=True)
        await anext(stream)
        waits = asyncio.create_task(client.completions.create(model="narrow", prompt="x"))
        await asyncio.to_thread(language_server.wait_for, "waiting", "narrow")
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        await stream.close()

    with language_server.ends("narrow", "cancelled", count=2):
        run(work)


# Models, headers.


def test_models_that_can_be_asked(client):
    found = {model.id: model for model in client.models.list()}
    assert set(found) == {"writer", "bytes", "narrow", "numbers"}
    one = client.models.retrieve("writer")
    assert (one.id, one.object, one.owned_by, one.created) == ("writer", "model", "tfs_lite", found["writer"].created)
    assert client.models.retrieve("writer@1").id == "writer@1"
    for missing in ("nobody", "writer@9"):
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(missing)


def test_versions_have_names(client, story):
    texts = {}
    for name, version in (("writer", "2"), ("writer@2", "2"), ("writer@1", "1")):
        asked = {"prompt": story.asked, "temperature": 0, "max_tokens": 24, "logprobs": 0}
        raw = client.completions.with_raw_response.create(model=name, **asked)
        found = raw.parse()
        assert (raw.headers["x-model-version"], raw.retries_taken, found.model) == (version, 0, name)
        assert found.system_fingerprint == f"writer:{version}"
        texts[name] = found.choices[0].text
    assert texts["writer"] == texts["writer@2"] == story.text != texts["writer@1"]


def test_raw_streams_have_headers(client, chat_answer):
    common = {**GREEDY, "messages": HELLO, "max_tokens": 24}
    raw = client.chat.completions.with_raw_response.create(**common, stream=True)
    assert (raw.headers["x-model-version"], raw.headers["cache-control"]) == ("2", "no-cache")
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert content_of(list(raw.parse())) == chat_answer.text
    with client.chat.completions.with_streaming_response.create(**common, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_model_without_a_tokenizer_answers_in_tokens(client):
    common = {"model": "numbers", "prompt": [1, 2, 3], "temperature": 0, "max_tokens": 8}
    found = client.completions.create(**common, extra_body={"return_token_ids": True, "ignore_eos": True})
    assert (found.choices[0].text, len(found.choices[0].token_ids)) == ("", 8)
    for wrong in (common, {**common, "prompt": "text"}):
        with pytest.raises(openai.BadRequestError, match="tokenizer"):
            client.completions.create(**wrong)


# Errors.

WRONG = [
    ("temperature", {"temperature": 200}, "temperature", "temperature is 200"),
    ("top_p", {"top_p": 0}, "top_p", "top_p is 0"),
    ("type", {"max_tokens": "many"}, "max_tokens", "max_tokens"),
    ("logprobs", {"logprobs": 21}, "logprobs", "logprobs"),
    ("n", {"n": 0}, "n", "n"),
    ("best_of", {"best_of": 3}, "best_of", "best_of is not supported"),
    ("suffix", {"suffix": "."}, "suffix", "suffix is not supported"),
    ("unknown", {"extra_body": {"temprature": 1}}, "temprature", 'did you mean "temperature"'),
    ("bias", {"logit_bias": {"9999": 1}}, "logit_bias", "9999 is no token"),
    ("too long", {"max_tokens": LENGTH}, None, str(LENGTH)),
    ("too long a prompt", {"prompt": "x" * LENGTH}, None, str(LENGTH)),
    ("tokens", {"prompt": [1, 264]}, None, "264"),
    ("stream options", {"stream_options": {"include_usage": True}}, "stream_options", "stream set to true"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("wrong", "param", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_bad_request_names_the_field(client, wrong, param, words, stream):
    how = {"stream": True} if stream and "stream_options" not in wrong else {}
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "writer", "prompt": "x", **wrong, **how})
    error = caught.value
    assert (error.status_code, error.type) == (400, "invalid_request_error")
    assert words in error.message
    if param is not None:
        assert error.param == param


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HELLO, {"role": "system", "content": "x"}]}, "the system speaks first"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "give one of them"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
    ids=["none", "role", "template", "image", "tools", "format", "limits", "logprobs"],
)
def test_bad_chat_is_refused(client, wrong, words):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "writer", "messages": HELLO, **wrong})
    assert words in caught.value.message


def test_what_is_not_there_is_not_found(client):
    for model in ("nobody", "writer@9"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model=model, messages=HELLO)
        error = caught.value
        assert (error.code, error.param, error.type) == ("model_not_found", "model", "invalid_request_error")
    with pytest.raises(openai.NotFoundError, match="Invalid URL"):
        client.responses.create(model="writer", input="x")


def test_language_model_makes_no_embeddings(client):
    with pytest.raises(openai.BadRequestError, match="ask an encoder"):
        client.embeddings.create(model="writer", input="x")


def test_full_queue_is_a_rate_limit(client, language_server):
    """One place, and one text may wait: two more are one too many."""
    two = {"model": "narrow", "prompt": "x", "n": 2, "max_tokens": 2}
    with client.completions.create(model="narrow", prompt="x", max_tokens=LONG, stream=True) as stream:
        next(stream)
        for how in ({}, {"stream": True}):
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(**two, **how)
            error = caught.value
            assert (error.status_code, error.type, error.code) == (429, "rate_limit_error", "rate_limit_exceeded")
            assert "queue" in error.message
            assert int(error.response.headers["retry-after"]) >= 1
    language_server.wait_idle("narrow")
    assert len(client.completions.create(**two).choices) == 2


def test_client_that_is_refused_tries_again_after_the_given_time(client, counting, language_server):
    patient, sent = counting
    with client.completions.create(model="narrow", prompt="x", max_tokens=500, stream=True) as stream:
        next(stream)
        sent.on_second = lambda: (stream.close(), language_server.wait_idle("narrow"))
        raw = patient.completions.with_raw_response.create(model="narrow", prompt="x", n=2, max_tokens=2)
    assert (raw.retries_taken, len(sent), len(raw.parse().choices)) == (1, 2, 2)


def test_deadline_ends_the_text_and_is_not_tried_again(counting, language_server):
    patient, sent = counting
    with language_server.ends("narrow", "deadline", "cancelled"):
        with pytest.raises(openai.InternalServerError) as caught:
            patient.completions.create(model="narrow", prompt="x", max_tokens=LONG, extra_body={"timeout": 0.2})
        assert (caught.value.status_code, caught.value.code, len(sent)) == (504, "deadline_exceeded", 1)


def test_deadline_within_a_stream_is_an_error_of_the_stream(client, language_server):
    asked = {"model": "narrow", "prompt": "x", "max_tokens": LONG, "extra_body": {"timeout": 0.5}}
    with language_server.ends("narrow", "deadline", "cancelled"), pytest.raises(openai.APIError) as caught:
        list(client.completions.create(**asked, stream=True))
    assert (caught.value.code, caught.value.type) == ("deadline_exceeded", "server_error")


def test_client_that_waits_no_longer_ends_its_text(client, language_server):
    with language_server.ends("narrow", "cancelled"), pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(model="narrow", prompt="x", max_tokens=LONG)
