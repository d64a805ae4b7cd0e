"""The tables of budgets and of calls to language models (spending.py). They came after the journal's first ones, so a
journal that lacks them is given them when it is opened.
"""

from __future__ import annotations

from typing import Final

SPENDING_TABLES: Final = """
CREATE TABLE budgets (
    name TEXT PRIMARY KEY,
    measure TEXT NOT NULL,
    per TEXT NOT NULL,
    currency TEXT NOT NULL,               -- of money; otherwise empty
    most INTEGER NOT NULL,                -- the limit, as the last program declared it
    seen_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE spent (
    budget TEXT NOT NULL REFERENCES budgets (name),
    period TEXT NOT NULL,                 -- a UTC day, or the key of a run
    spent INTEGER NOT NULL DEFAULT 0 CHECK (spent >= 0),
    reserved INTEGER NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    changed_at REAL NOT NULL,
    PRIMARY KEY (budget, period)
) STRICT, WITHOUT ROWID;

CREATE TABLE llm_calls (
    id INTEGER PRIMARY KEY,               -- in the order they were begun
    call_id TEXT NOT NULL UNIQUE,
    run TEXT,
    model TEXT NOT NULL,                  -- as it was asked for
    state TEXT NOT NULL,                  -- reserved, done, released, unknown
    began_at REAL NOT NULL,
    ended_at REAL,
    provider TEXT,
    answered_by TEXT,                     -- the model, as the response names it
    finish_reasons TEXT,
    input_tokens INTEGER,                 -- these five as the vendor counts them; NULL: it did not say
    output_tokens INTEGER,
    cached_tokens INTEGER,
    written_tokens INTEGER,
    reasoning_tokens INTEGER,
    all_tokens INTEGER,                   -- everything that is billed, each token once
    cost INTEGER,                         -- picos of the currency; NULL: unknown
    currency TEXT,
    milliseconds INTEGER,
    reasoning TEXT,                       -- only where the program asked to keep it
    note TEXT
) STRICT;

CREATE TABLE llm_holds (
    call_id TEXT NOT NULL REFERENCES llm_calls (call_id),
    budget TEXT NOT NULL,
    period TEXT NOT NULL,
    held INTEGER NOT NULL,                -- what was reserved
    charged INTEGER,                      -- what it took in the end; NULL: still reserved
    PRIMARY KEY (call_id, budget)
) STRICT, WITHOUT ROWID;
"""
