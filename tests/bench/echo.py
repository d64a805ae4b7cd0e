"""The baseline of the service: a FastAPI route that reads and answers the same body, typed, and does nothing.

`python -m tests.bench.echo PORT`, on loopback, with uvicorn as it comes (uvloop and httptools).
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Effect(BaseModel):
    """One effect, as far as its types go."""

    tool: str
    tool_digest: str
    args: dict[str, str | int]


class Transaction(BaseModel):
    """A submission's body, plainly typed."""

    run_key: str
    effects: list[Effect]
    attempt_id: str | None = None


app = FastAPI()


@app.post("/v1/transactions", status_code=201)
async def echo(body: Transaction) -> Transaction:
    """Answer what was sent."""
    return body


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
