"""Instructor against a server: `instructor_client.py URL`."""

import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Place(BaseModel):
    city: Literal["Oslo", "Rome"]
    warm: bool


client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="any", max_retries=0, timeout=120)
asked = dict(
    model="tiny",
    messages=[{"role": "user", "content": "Where is the sea?"}],
    response_model=Place,
    max_tokens=160,
    max_retries=0,
)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    place = instructor.from_openai(client, mode=mode).chat.completions.create(**asked)
    assert isinstance(place, Place), (mode, place)
