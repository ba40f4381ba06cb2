"""OpenAI's own Python client against a server: `sdk.py URL KEYED_URL BUSY_URL [SPECIALIST ..]`.

KEYED_URL wants the key `secret`. BUSY_URL runs one request at a time and lets one wait. With specialists, all
three are ensembles of them.
"""

import asyncio
import json
import sys
from typing import Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

PLAIN, KEYED, BUSY = (url + "/v1" for url in sys.argv[1:4])
MODEL = "tiny"
SPECIALISTS = sys.argv[4:]
client = OpenAI(base_url=PLAIN, api_key="any", max_retries=0, timeout=120)

ASK = [{"role": "user", "content": "Where is the sea?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def said(text):
    """What makes a tiny model say exactly this."""
    return {"structured_outputs": {"choice": [text]}}


def models():
    names = [model.id for model in client.models.list()]
    assert names == [MODEL, *SPECIALISTS], names
    assert client.models.retrieve(MODEL).object == "model"


def completions():
    asked = dict(model=MODEL, prompt="Once upon", max_tokens=12, temperature=0)
    whole = client.completions.create(**asked)
    assert whole.object == "text_completion" and whole.usage.completion_tokens == 12, whole
    assert whole.choices[0].finish_reason == "length", whole
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text, (text, whole)
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == 12, chunks[-1]
    assert chunks[-1].choices == [], chunks[-1]
    probable = client.completions.create(**asked, logprobs=2).choices[0].logprobs
    assert len(probable.tokens) == len(probable.token_logprobs) == len(probable.text_offset) == 12
    assert all(len(top) >= 2 for top in probable.top_logprobs), probable
    several = client.completions.create(
        model=MODEL, prompt=[[5, 6, 7], [8, 9]], n=2, seed=7, temperature=1, max_tokens=4
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3], several
    assert several.usage.prompt_tokens == 5, several.usage


def chats():
    asked = dict(model=MODEL, messages=ASK, max_completion_tokens=9, temperature=0)
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    choice = whole.choices[0]
    assert whole.object == "chat.completion" and choice.message.role == "assistant", whole
    assert len(choice.logprobs.content) == whole.usage.completion_tokens, whole
    assert all(len(token.top_logprobs) == 3 for token in choice.logprobs.content), choice.logprobs
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == choice.message.content, (text, choice)
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens, chunks[-1]
    parts = [{"role": "user", "content": [{"type": "text", "text": ASK[0]["content"]}]}]
    again = client.chat.completions.create(**asked | {"messages": parts})
    assert again.choices[0].message.content == choice.message.content, again
    forced = client.chat.completions.create(**asked | {"max_completion_tokens": 60}, extra_body=said("by the sea"))
    assert forced.choices[0].message.content == "by the sea", forced
    assert forced.choices[0].finish_reason == "stop", forced
    two = client.chat.completions.create(**asked | {"temperature": 1}, n=2, seed=3)
    assert [choice.index for choice in two.choices] == [0, 1], two


class Place(BaseModel):
    city: Literal["Oslo", "Rome"]
    warm: bool


def schemas():
    asked = dict(model=MODEL, messages=ASK, max_completion_tokens=120)
    parsed = client.chat.completions.parse(**asked, response_format=Place)
    place = parsed.choices[0].message.parsed
    assert isinstance(place, Place), parsed
    with client.chat.completions.stream(**asked, response_format=Place) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Place)


def tools():
    asked = dict(model=MODEL, messages=ASK, tools=[WEATHER], max_completion_tokens=160)
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        answer = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
        call = answer.message.tool_calls[0]
        assert call.function.name == "weather" and call.id, answer
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome"), call
    free = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    answer = client.chat.completions.create(**asked, extra_body=said(free)).choices[0]
    assert answer.finish_reason == "tool_calls", answer
    assert json.loads(answer.message.tool_calls[0].function.arguments) == {"city": "Rome"}, answer
    # The client's own joining of the parts of a streamed call.
    with client.chat.completions.stream(**asked, extra_body=said(free)) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert final.finish_reason == "tool_calls", final
    streamed = final.message.tool_calls[0].function
    assert streamed.name == "weather" and json.loads(streamed.arguments) == {"city": "Rome"}, final
    # The call and its result go back as the client made them.
    messages = ASK + [
        answer.message,
        {"role": "tool", "tool_call_id": answer.message.tool_calls[0].id, "content": "sunny"},
    ]
    back = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], max_tokens=4)
    assert back.usage.prompt_tokens > 0, back


def raises(kind, status, code, call):
    try:
        call()
    except kind as error:
        assert error.status_code == status, error
        assert isinstance(error.body, dict) and error.body["message"], error.body
        assert code is None or error.code == code, (error.code, error.body)
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def errors():
    chat = client.chat.completions.create
    raises(openai.NotFoundError, 404, "model_not_found", lambda: chat(model="other", messages=ASK))
    wrong = raises(openai.BadRequestError, 400, None, lambda: chat(model=MODEL, messages=ASK, temperature=-1))
    assert wrong.param == "temperature", wrong.body
    wrong = raises(openai.BadRequestError, 400, None, lambda: chat(model=MODEL, messages=[{"role": "user", "content": 3}]))
    assert wrong.param == "messages[0].content", wrong.body
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    raises(openai.BadRequestError, 400, None, lambda: chat(model=MODEL, messages=[{"role": "user", "content": picture}]))
    long = dict(model=MODEL, prompt=[5] * 5000)
    raises(openai.BadRequestError, 400, "context_length_exceeded", lambda: client.completions.create(**long))
    # A stream that cannot begin is an error like any other.
    raises(openai.BadRequestError, 400, "context_length_exceeded", lambda: client.completions.create(**long, stream=True))
    missing = "unsupported_endpoint"
    raises(openai.NotFoundError, 404, missing, lambda: client.responses.create(model=MODEL, input="x"))
    raises(openai.NotFoundError, 404, missing, lambda: client.embeddings.create(model=MODEL, input="x"))
    stranger = OpenAI(base_url=KEYED, api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, 401, "invalid_api_key", lambda: stranger.models.list())
    friend = OpenAI(base_url=KEYED, api_key="secret", max_retries=0)
    assert len(friend.models.list().data) == 1 + len(SPECIALISTS)


async def together():
    """Many at once are answered as each is alone."""
    many = AsyncOpenAI(base_url=PLAIN, api_key="any", max_retries=0, timeout=120)

    async def streamed(seed):
        stream = await many.completions.create(
            model=MODEL, prompt=f"Number {seed}", seed=seed, temperature=1, max_tokens=8 + seed, stream=True
        )
        return "".join([choice.text async for chunk in stream for choice in chunk.choices])

    texts = await asyncio.gather(*(streamed(seed) for seed in range(16)))
    for seed, text in enumerate(texts):
        alone = await many.completions.create(
            model=MODEL, prompt=f"Number {seed}", seed=seed, temperature=1, max_tokens=8 + seed
        )
        assert alone.choices[0].text == text, (seed, text, alone)
    # One that is given up hurts nobody.
    given_up = await many.completions.create(model=MODEL, prompt="x", max_tokens=200, stream=True)
    async for _ in given_up:
        break
    await given_up.close()
    assert (await many.completions.create(model=MODEL, prompt="y", max_tokens=2)).choices


async def too_many():
    """A full queue is a RateLimitError that says when to come back, and a client that does come back is served."""
    busy = AsyncOpenAI(base_url=BUSY, api_key="any", max_retries=0, timeout=120)
    ask = dict(model=MODEL, prompt="x", max_tokens=400, extra_body={"ignore_eos": True})
    outcomes = await asyncio.gather(*(busy.completions.create(**ask) for _ in range(12)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, openai.RateLimitError)]
    served = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    assert refused and served and len(refused) + len(served) == 12, outcomes
    for error in refused:
        wait = error.response.headers["retry-after"]
        assert wait == str(int(wait)) and 1 <= int(wait) <= 120, wait
    patient = busy.with_options(max_retries=20)
    outcomes = await asyncio.gather(*(patient.completions.create(**ask) for _ in range(4)))
    assert len(outcomes) == 4


def main():
    for step in (models, completions, chats, schemas, tools, errors):
        step()
        print(f"ok: {step.__name__}", flush=True)
    for step in (together, too_many):
        asyncio.run(step())
        print(f"ok: {step.__name__}", flush=True)


main()
