"""What a call costs in another runtime: run by an interpreter that has it, never by ours.

    python elsewhere.py agenthelm|agentrelay|pherix PLACE    # PLACE: a folder, or "memory"

Each line on the input is a run of so many calls, answered by its seconds: one tool, a payload of 700 bytes, nothing to
do. As each is used by its own documents: of Pherix an irreversible tool with a compensator, in one transaction with a
journal; of AgentRelay a tool in one session; of AgentHelm a tool that wants approval and a handler that gives it.
"""

import sys
import time

BODY = "shipped " * 90


def agenthelm(place):
    """Traced calls, each approved by a handler in this process. It has no storage in memory."""
    from agenthelm.core.handlers import AutoApproveHandler
    from agenthelm.core.storage import SqliteStorage
    from agenthelm.core.tool import tool
    from agenthelm.core.tracer import ExecutionTracer

    tracer = ExecutionTracer(SqliteStorage(f"{place}/helm.db"), AutoApproveHandler())

    @tool(requires_approval=True)
    def send_mail(number: int, body: str) -> str:
        return "ok"

    def run(calls):
        for number in range(calls):
            tracer.trace_and_execute(send_mail, number, BODY)

    return run


def agentrelay(place):
    """A session of calls."""
    from agent_relay import AgentRuntime, tool

    database = "sqlite:///:memory:" if place == "memory" else f"sqlite:///{place}/relay.db"
    runtime = AgentRuntime.from_connection_string(database)

    @tool(runtime, name="send_mail")
    def send_mail(number, body):
        return "ok"

    def run(calls):
        with runtime.agent_session(name="bench", input_payload={}):
            for number in range(calls):
                send_mail(number, BODY)

    return run


def pherix(place):
    """A transaction of compensated calls."""
    from pherix import AuditJournal, HTTPAdapter, agent_txn, tool

    journal = AuditJournal(":memory:" if place == "memory" else f"{place}/pherix.db")

    @tool("http", injects_handle=False)
    def unsend(number, body):
        return "ok"

    @tool("http", injects_handle=False, compensator="unsend")
    def send_mail(number, body):
        return "ok"

    def run(calls):
        with agent_txn({"http": HTTPAdapter()}, audit=journal):
            for number in range(calls):
                send_mail(number=number, body=BODY)

    return run


def main():
    """Answer each line."""
    run = {"agenthelm": agenthelm, "agentrelay": agentrelay, "pherix": pherix}[sys.argv[1]](sys.argv[2])
    for line in sys.stdin:
        start = time.perf_counter()
        run(int(line))
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
