"""``policy-service new``: a starter bundle with its cases and a CI workflow, in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

import typer

from policy_service.channels.operator.speaking import AsJson, say, sentences
from policy_service.errors import StartError

_RULES: Final = """\
// What agents may do, what waits for people, and what never happens.
// Three kinds of rule: a permit allows, a forbid refuses, and a forbid with @approval (a gate) waits for people.

@id("agents-may-use-tools")
@title("Agents may use the tools of this bundle")
@doc("Whatever no rule below holds back goes through.")
permit (principal in Role::"agent", action, resource);

@id("writes-need-a-person")
@title("Everything that changes something asks a person")
@doc("A tool is a read only if its manifest is in the group `read`. Every other one is a write.")
@approval("operations")
@answer_within("4h")
forbid (principal, action, resource)
unless { action in Action::"read" };

@id("never-to-blocked-customers")
@title("Never to blocked customers")
@doc("This customer asked to be left alone. Write a note for the team instead.")
forbid (principal, action == Action::"send_message", resource)
when { resource.blocked };

@id("operations-starts-again")
@title("Operations starts again")
@doc("Whoever a gate asks may stop an agent, a tool or everything; this says who ends such a stop.")
permit (principal in Group::"operations", action == Action::"start_again", resource);
"""

_GROUPS: Final = """\
# Who is in which group. A person is "issuer|subject", never an email: put your identity provider's here.

[people.alex]
id = "https://login.example.com|alex"
name = "Alex Example"

[groups.operations]
title = "Operations"
members = ["alex"]

# Asked when a call carries something policy cannot weigh (a list of objects, a map, a null).
[groups.unseen]
title = "Whoever looks at what policy cannot weigh"
members = ["alex"]
"""

_FACTS: Final = """\
# What the service itself knows about a customer. Policy reads it as resource.blocked; an agent cannot write here, and
# a customer that is not in the file is a deny.

[entities.Customer.attributes]
blocked = "Bool"

[[source]]
name = "customers"
kind = "file"
file = "facts/customers.json"
entity = "Customer"

# The same from a database, read-only:
# [[source]]
# name = "customers"
# kind = "sql"
# url_env = "CUSTOMERS_URL"
# entity = "Customer"
# query = "SELECT blocked FROM customers WHERE id = :resource_id"
"""

_CUSTOMERS: Final = """\
{
  "cus_1": { "blocked": false },
  "cus_2": { "blocked": true }
}
"""

_SEND: Final = """\
{
  "tool": "send_message",
  "title": "Send a message",
  "description": "Sends a message to a customer.",
  "args": {
    "type": "object",
    "additionalProperties": false,
    "required": ["customer", "text"],
    "properties": {
      "customer": { "type": "string", "minLength": 1, "maxLength": 64 },
      "text": { "type": "string", "minLength": 1, "maxLength": 5000 }
    }
  },
  "resource": { "type": "Customer", "id": "/customer" },
  "groups": ["messages"],
  "risk": "medium",
  "recipients": ["/customer"],
  "sentence": "Send {customer} the message {text}"
}
"""

_READ: Final = """\
{
  "tool": "read_history",
  "title": "Read a customer's history",
  "description": "Reads what was said to a customer before. Changes nothing.",
  "args": {
    "type": "object",
    "additionalProperties": false,
    "required": ["customer"],
    "properties": {
      "customer": { "type": "string", "minLength": 1, "maxLength": 64 }
    }
  },
  "resource": { "type": "Customer", "id": "/customer" },
  "groups": ["read"],
  "idempotent": true,
  "risk": "low",
  "sentence": "Read the history of {customer}"
}
"""

_CASES: Final = """\
# What these rules must answer. One case: who calls which tool with what, and what comes of it.
# `policy-service test --mutate FOLDER` runs them, and changes each rule to see that some case notices.

agents:
  helper: { name: helper, roles: [agent] }
  stranger: { name: stranger }

defaults:
  agent: helper

cases:
  - it: reading goes through by itself
    tool: read_history
    args: { customer: cus_1 }
    expect: release

  - it: a message asks one person of operations, who has four hours
    tool: send_message
    args: { customer: cus_1, text: Your parcel is on its way. }
    expect: review
    gates: [writes-need-a-person]
    needs: { operations: { people: 1, answer_within: 4h } }

  - it: nobody is asked about a message to a blocked customer
    tool: send_message
    args: { customer: cus_1, text: Your parcel is on its way. }
    facts: { resource: { blocked: true } }
    expect: deny
    reasons: [never-to-blocked-customers]

  - it: an agent without the role may do nothing
    agent: stranger
    args: { customer: cus_1 }
    matrix:
      - { it: reading, tool: read_history }
      - { it: writing, tool: send_message, args: { text: Hello. } }
    expect: deny
    reasons: [no_permit]

start_again:
  - { it: operations ends a stop, groups: [operations], expect: allowed, policies: [operations-starts-again] }
  - { it: whoever is not in operations ends none, groups: [unseen], expect: refused }
"""

_README: Final = """\
# The rules of our agents

What agents may do by themselves, what waits for people, and what never happens. Countersign obeys this folder, and
every decision names the commit it was made under.

| here | is |
|---|---|
| `rules.cedar` | the rules, in [Cedar](https://docs.cedarpolicy.com); any number of `*.cedar` files |
| `tools/` | one reviewed manifest for each tool; `countersign tools export --tools MODULE` drafts them from code |
| `groups.toml` | who is in which group |
| `facts.toml`, `facts/` | what the service itself knows about a resource |
| `cases/` | what the rules must answer |
| `.github/workflows/policies.yml` | what every change must pass |

Before you push:

```sh
policy-service check .
policy-service fmt .
policy-service test --mutate .
policy-service diff .@origin/main .
```

The last one fails on whatever would be allowed that was not, and prints an id beside it. Where that is meant, put a
line `Policy-Ack: ID` at the end of the commit's message: whoever reviews the change sees what it allows and who says
so.

Write the case first. A rule without a case that turns red when the rule is changed is held by nothing, and `--mutate`
says so.

The workflow needs two variables of this repository: `COUNTERSIGN_REPOSITORY`, where Countersign's source is
(`owner/name`), and `COUNTERSIGN_REF`, the commit of the version you run.
"""

_WORKFLOW: Final = """\
# Every change to the rules: is it valid, do its cases hold and notice every slip, and what would it change?
name: policies

on:
  pull_request:
  push:
    branches: [main]

permissions:
  contents: read

jobs:
  policies:
    runs-on: ubuntu-latest
    timeout-minutes: 15
    steps:
      - uses: actions/checkout@v4
        with:
          fetch-depth: 0
          persist-credentials: false
      - uses: actions/checkout@v4
        with:
          repository: ${{ vars.COUNTERSIGN_REPOSITORY }}
          ref: ${{ vars.COUNTERSIGN_REF }}
          path: .countersign
          persist-credentials: false
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: Install policy-service, every file checked against its hash
        working-directory: .countersign
        run: |
          python -m pip install --quiet --require-hashes -r requirements/build.txt
          python -m pip install --quiet --require-hashes -r requirements/service.txt
          python -m pip install --quiet --no-deps --no-build-isolation ./sdk/python .
      - name: The bundle is valid
        run: policy-service check .
      - name: The rules are formatted
        run: policy-service fmt --check .
      - name: The cases hold, and notice every slip
        run: policy-service test --mutate --coverage --junit "$RUNNER_TEMP/policies.xml" .
      - name: What this change would allow
        if: github.event_name == 'pull_request'
        env:
          BASE: ${{ github.base_ref }}
        # What is meant to be allowed, somebody acknowledges in a commit's message: Policy-Ack: ID
        run: |
          acks=$(git log "origin/$BASE.." --format='%(trailers:key=Policy-Ack,valueonly)' | sed '/^$/d; s/^/--ack /')
          policy-service diff ".@origin/$BASE" . $acks
"""

STARTER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "README.md": _README,
        "rules.cedar": _RULES,
        "groups.toml": _GROUPS,
        "facts.toml": _FACTS,
        "facts/customers.json": _CUSTOMERS,
        "tools/read_history.json": _READ,
        "tools/send_message.json": _SEND,
        "cases/rules.yaml": _CASES,
        ".github/workflows/policies.yml": _WORKFLOW,
    }
)
"""Text by name within the folder."""


Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Where to write it: a new or an empty folder.")
]
_OF_GIT = {".git"}  # of a repository just made; everything else is somebody's


def new(folder: Folder, as_json: AsJson = False) -> None:
    """Write a starter bundle: rules, tools, groups, facts, cases and a CI workflow."""
    with sentences():
        _require_empty(folder)
        try:
            for name, text in STARTER.items():
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StartError(
                f"{str(error.filename)!r} cannot be written: {error.strerror}; name another folder"
            ) from error
        done = f"wrote {len(STARTER)} files into {folder}; now `policy-service test --mutate {folder}`"
        say({"ok": True, "folder": str(folder), "files": list(STARTER)}, as_json, done)


def _require_empty(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StartError(f"{str(folder)!r} is a file; name a folder that is new or empty")
    try:
        there = sorted(path.name for path in folder.iterdir() if path.name not in _OF_GIT)
    except OSError as error:
        raise StartError(f"{str(folder)!r} cannot be read: {error.strerror}; name another folder") from error
    if there:
        raise StartError(
            f"{str(folder)!r} is not empty: it holds {there[0]!r}; name a folder that is new or empty"
        )
