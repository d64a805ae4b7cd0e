"""The journal's tables in SQLite's words; sqlite.py creates them.

`transactions` holds one row for each run key, `effects` one row for each call
of each list staged under it, `outbox` the reports to send, `chain` one line for each change of any of them. The chain
has no index by transaction, because every page that a commit writes costs time with every effect: the transaction's
row leads to its last line.
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


VERSION: Final = 1
APPLICATION_ID: Final = 0x43534A31  # "CSJ1": another program's database is never taken for a journal

TABLES: Final = """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE manifests (
    tool TEXT NOT NULL,
    digest TEXT NOT NULL,
    body BLOB NOT NULL,
    kept_at REAL NOT NULL,
    PRIMARY KEY (tool, digest)
) STRICT;

CREATE TABLE transactions (
    txn TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    run_key TEXT NOT NULL,
    independent INTEGER NOT NULL,
    state TEXT NOT NULL,
    stagings INTEGER NOT NULL DEFAULT 0,  -- how many lists were begun under this key
    staging INTEGER,                      -- the list in force: the last one frozen
    live INTEGER NOT NULL DEFAULT 0,      -- live effects beside the list in force
    rev INTEGER,
    txn_digest TEXT,
    attempt_id TEXT,
    redeemed INTEGER NOT NULL DEFAULT 0,  -- a verified receipt of that attempt has been seen
    landed INTEGER NOT NULL DEFAULT 0,    -- the live adapters of that attempt have committed
    parked INTEGER NOT NULL DEFAULT 0,
    note TEXT,
    holder TEXT,
    generation INTEGER NOT NULL DEFAULT 0,
    lease_until REAL NOT NULL DEFAULT 0,
    chain_n INTEGER NOT NULL DEFAULT 0,   -- the head of its chain: how many lines, which is the last, its hash
    chain_id INTEGER,
    chain_hash TEXT NOT NULL DEFAULT '',
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
) STRICT;

CREATE TABLE effects (
    txn TEXT NOT NULL REFERENCES transactions (txn),
    staging INTEGER NOT NULL,
    lane TEXT NOT NULL,
    seq INTEGER NOT NULL,
    effect_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    call_key TEXT NOT NULL,
    args BLOB NOT NULL,                   -- canonical bytes, as approved
    staged_args BLOB,                     -- as the agent staged them, where an accepted edit changed them
    tool_digest TEXT,
    resource_type TEXT,
    resource_id TEXT,
    compensation BLOB,
    effect_digest TEXT,
    state TEXT NOT NULL,
    generation INTEGER,                   -- the lease under which it was last fired
    attempt_id TEXT,                      -- of a compensation: its own attempt
    compensates TEXT,
    result BLOB,
    error TEXT,
    settlements BLOB,                     -- what people said of it to the service, as the service told it
    updated_at REAL NOT NULL,
    PRIMARY KEY (txn, staging, lane, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX effects_by_id ON effects (effect_id);

CREATE TABLE outbox (
    id INTEGER PRIMARY KEY,
    txn TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    effect_id TEXT NOT NULL,
    outcome TEXT NOT NULL,
    result BLOB,
    error TEXT,
    written_at REAL NOT NULL,
    reported_at REAL,
    refused TEXT,                         -- the service's answer, where it will never take this report
    UNIQUE (attempt_id, effect_id, outcome)
) STRICT;

CREATE TABLE receipts (
    attempt_id TEXT PRIMARY KEY,
    txn TEXT NOT NULL,
    token TEXT NOT NULL,                  -- the first one: it proves the whole list, whatever it renewed
    kept_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE chain (
    id INTEGER PRIMARY KEY,               -- its place in the journal: no number is left out
    txn TEXT NOT NULL,                    -- '' for what belongs to no transaction
    n INTEGER NOT NULL,                   -- its place in the transaction's chain
    kind TEXT NOT NULL,
    body BLOB NOT NULL,                   -- canonical; binds all the others (chain.py)
    prev TEXT NOT NULL,
    hash TEXT NOT NULL
) STRICT;

CREATE INDEX chain_own ON chain (n) WHERE txn = '';

CREATE INDEX outbox_open ON outbox (id) WHERE reported_at IS NULL AND refused IS NULL;
CREATE INDEX transactions_open ON transactions (state) WHERE state NOT IN ('settled', 'ended');
"""

CLAIMS_TABLE: Final = """
CREATE TABLE claims (
    resource TEXT PRIMARY KEY,            -- the name of a live adapter
    txn TEXT NOT NULL REFERENCES transactions (txn),
    generation INTEGER NOT NULL,          -- the lease it hangs on: the claim stands as long
    taken_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
"""

ADDED: Final = {"llm_holds": SPENDING_TABLES, "claims": CLAIMS_TABLE}
"""What came after the journal's first tables, by the last table of each: a journal that lacks it is given it when it is
opened; an SDK of before does not look at it.
"""

_TRIGGERS: Final = """
CREATE TRIGGER chain_is_not_changed BEFORE UPDATE ON chain
BEGIN SELECT RAISE(ABORT, 'a line of the chain is never changed'); END;

CREATE TRIGGER chain_is_not_cut BEFORE DELETE ON chain
BEGIN SELECT RAISE(ABORT, 'a line of the chain is never deleted'); END;

CREATE TRIGGER chain_follows BEFORE INSERT ON chain WHEN NEW.txn <> '' AND NOT EXISTS
(SELECT 1 FROM transactions WHERE txn = NEW.txn AND chain_n = NEW.n - 1 AND chain_hash = NEW.prev)
BEGIN SELECT RAISE(ABORT, 'the chain of this transaction was changed, `countersign journal verify` tells where'); END;

CREATE TRIGGER chain_has_a_head AFTER INSERT ON chain WHEN NEW.txn <> ''
BEGIN UPDATE transactions SET chain_n = NEW.n, chain_id = NEW.id, chain_hash = NEW.hash WHERE txn = NEW.txn; END;
"""
