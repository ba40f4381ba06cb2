"""Pydantic models filled by LangChain and by OpenAI's own client: `structured.py URL`.

None of the models forbids further fields, so that the schemas say nothing of `additionalProperties`. A bias for the comma
makes the model add a field wherever one is allowed, so an answer comes to its end only if the server allows none by
itself. Each field has few values, because the weights are random.
"""

import json
import sys
import urllib.request
from typing import Literal, Optional

from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, Field

BASE = sys.argv[1] + "/v1"
ASK = "Describe the room."
SEEDS = range(4)


class Bed(BaseModel):
    """A bed."""

    size: Literal["single", "double"]
    made: bool


class Room(BaseModel):
    """A room of the house."""

    kind: Literal["kitchen", "hall", "attic"] = Field(description="What it is for")
    guests: int = Field(ge=0, le=9)
    bed: Bed
    warm: Optional[bool] = None


def bias():
    """A bias that makes the model choose a comma wherever it may."""
    body = json.dumps({"prompt": ",", "add_special_tokens": False}).encode()
    request = urllib.request.Request(sys.argv[1] + "/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        [comma] = json.load(response)["tokens"]
    return {str(comma): 100}


def langchain():
    for method in ("function_calling", "json_schema"):
        for seed in SEEDS:
            model = ChatOpenAI(
                base_url=BASE, api_key="any", model="tiny", max_retries=0, timeout=120, max_tokens=300, seed=seed,
                temperature=1, logit_bias=BIAS,
            )
            room = model.with_structured_output(Room, method=method).invoke(ASK)
            assert isinstance(room, Room), (method, seed, room)


def openai():
    client = OpenAI(base_url=BASE, api_key="any", max_retries=0, timeout=120)
    for seed in SEEDS:
        answer = client.chat.completions.parse(
            model="tiny", messages=[{"role": "user", "content": ASK}], max_tokens=300, seed=seed, temperature=1,
            logit_bias=BIAS, response_format=Room,
        )
        assert isinstance(answer.choices[0].message.parsed, Room), (seed, answer)


def not_strict():
    """The schema as Pydantic has it, which the client did not make strict."""
    client = OpenAI(base_url=BASE, api_key="any", max_retries=0, timeout=120)
    schema = Room.model_json_schema()
    assert "additionalProperties" not in schema
    format = {"type": "json_schema", "json_schema": {"name": "Room", "schema": schema}}
    for seed in SEEDS:
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": ASK}], max_tokens=300, seed=seed, temperature=1,
            logit_bias=BIAS, response_format=format,
        ).choices[0]
        assert answer.finish_reason == "stop", (seed, answer)
        Room.model_validate_json(answer.message.content)


BIAS = bias()
for step in (openai, not_strict, langchain):
    step()
    print(f"ok: {step.__name__}", flush=True)
