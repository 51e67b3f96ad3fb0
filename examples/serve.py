"""
Serve the state of a running query over HTTP, from a replica in memory; keys are text.

Run: pip install fastapi uvicorn, then STATE=s3://bucket/jobs/totals uvicorn serve:app
"""

import os
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

import statelog


@asynccontextmanager
async def lifespan(app):
    with statelog.open(os.environ["STATE"]) as state, state.follow() as replica:
        app.state.replica = replica
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/{variable}/{key}")
def value(variable: str, key: str):
    try:
        fields = app.state.replica.get(variable, (key,))
    except statelog.UsageError as error:  # there is no such variable
        raise HTTPException(404, str(error)) from error
    if fields is None:
        raise HTTPException(404, f"{variable} of {key!r} is not set")
    return fields


@app.get("/")
def health():
    status = app.state.replica.status()
    return {"checkpoint": status.checkpoint_id, "checked_seconds_ago": status.checked_s}
