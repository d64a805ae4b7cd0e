"""`countersign journal close`: a person says that what a commit of live effects left in part is put right.

Whoever says so is taken at their word, as everybody is who may write the journal: it is a note, and no signature.
"""

from __future__ import annotations

from typing import Annotated

import typer

from countersign.cli.terminal import AllToolsOption, JsonOption, errors_told, print_json, print_members
from countersign.journal.telling import summary_of
from countersign.recovery.prior_run import close
from countersign.runtime import Runtime
from countersign.tools.registry import load_tools


def close_journal(
    txn: Annotated[str, typer.Argument(help="The transaction's id, or enough of its beginning.")],
    tools: AllToolsOption,
    by: Annotated[str, typer.Option(help="Who has put it right and says so.")],
    why: Annotated[str, typer.Option(help="What was found and done, for whoever reads it later.")],
    as_json: JsonOption = False,
) -> None:
    """Close an unsettled transaction of whose live effects a part stands, once a person has put that right.

    What its adapters had prepared is undone, and nothing else changed. It is told as closed, never as done, and its key
    is spent. Refused for any other transaction, and while a process owns it.
    """
    with errors_told():
        load_tools(*tools)
        with Runtime.from_env() as runtime:
            record = close(runtime.engine(runtime.sync_waits()), txn, by=by, why=why)
            told = summary_of(runtime.journal, record.txn)
    if as_json:
        print_json(told)
    else:
        print_members(told)
