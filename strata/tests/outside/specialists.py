"""OpenAI's own Python client chooses specialists: `specialists.py URL SPECIALIST ..`."""

import sys

import openai
from openai import OpenAI

URL, *SPECIALISTS = sys.argv[1:]
client = OpenAI(base_url=URL + "/v1", api_key="any", max_retries=0, timeout=120)
ASK = [{"role": "user", "content": "Where is the sea?"}]


def chat(**more):
    return client.chat.completions.with_raw_response.create(
        **{"model": "tiny", "messages": ASK, "max_tokens": 4, **more}
    )


def named():
    """As a model, as a field, and in a stream."""
    for name in SPECIALISTS:
        for more in [{"model": name}, {"extra_body": {"specialist": name}}]:
            response = chat(**more)
            assert response.headers["x-strata-specialist"] == name, response.headers
            assert response.parse().model == name
            streamed = chat(**more, stream=True)
            assert streamed.headers["x-strata-specialist"] == name, streamed.headers
            assert all(chunk.model == name for chunk in streamed.parse())


def routed():
    """Without a name, the router decides, and the response says who and why."""
    response = chat(extra_body={"intent": "codegen"})
    assert response.headers["x-strata-specialist"] in SPECIALISTS
    assert response.headers["x-strata-route"]
    assert response.parse().model == response.headers["x-strata-specialist"]


def errors():
    for more, param in [({"specialist": "none"}, "specialist"), ({"intent": "cooking"}, "intent"), ({"deadline_ms": 0}, "deadline_ms")]:
        try:
            chat(extra_body=more)
        except openai.BadRequestError as error:
            assert error.param == param, error
        else:
            raise AssertionError(more)


def late():
    """A deadline that cannot be met is refused with the time of a retry, and with a code."""
    long = {"max_tokens": 200, "extra_body": {"specialist": SPECIALISTS[0], "ignore_eos": True}}
    chat(**long)
    long["extra_body"]["deadline_ms"] = 1
    try:
        chat(**long)
    except openai.RateLimitError as error:
        assert error.code == "deadline_unreachable", error
        assert 1 <= int(error.response.headers["retry-after"]) <= 120
    else:
        raise AssertionError("a response within a millisecond")


for step in [named, routed, errors, late]:
    step()
    print(f"ok: {step.__name__}")
