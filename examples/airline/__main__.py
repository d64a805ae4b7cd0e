"""`make airline`: recorded agent runs through the SDK and a real service, against the airline's rule book.

    python -m examples.airline [--people approve|absent]

Starts the service with the bundle `policies/examples/airline` in a temporary folder, enrols one agent, drives
every recorded run and prints what was decided, by tool, against the labels of the recording. The last line is
one JSON object.

People (`--people`): by default the airline's people approve every question, so that a run goes on as it was
recorded: a later call then finds the database as the recorded agent found it. With `absent` every question
stays open and what it asks about does not happen. Either way a call counts as what the policy said first, and
neither the service nor the people ever see a label.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from countersign import CountersignError, PendingReview, Runtime, use_runtime
from examples.airline import data, report
from examples.airline.database import AirlineDatabase
from examples.airline.replay import People, no_approvals, replay
from examples.airline.tools import DATABASE
from examples.local_service import (
    REPOSITORY,
    LocalService,
    ServiceError,
    end_in_order_on_signals,
    free_port,
)
from examples.person import PageError, Person

BUNDLE = REPOSITORY / "policies/examples/airline"
FACTS = "AIRLINE_FACTS_URL"  # named by the bundle's facts.toml
AGENT = "airline-service-agent"
ROLE = "airline-agent"
PEOPLE = ("rosa", "dana", "milo")  # the service desk and the duty managers of the bundle's groups.toml
REASON = "replayed: the people of the recording had no objection"


def main() -> int:
    """Drive all runs and print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.airline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--people", choices=("approve", "absent"), default="approve")
    arguments = parser.parse_args()
    end_in_order_on_signals()
    try:
        source = data.folder()
        with tempfile.TemporaryDirectory(prefix="countersign-airline-") as folder:
            _drive(source, Path(folder), arguments.people)
    except (data.DataMissingError, ServiceError, PageError, CountersignError) as error:
        print(f"the replay ends here: {error}", file=sys.stderr)
        return 1
    return 0


def _drive(source: Path, folder: Path, people: str) -> None:
    started = time.monotonic()
    airline = AirlineDatabase(folder / "airline.sqlite3", source)
    os.environ[DATABASE] = str(airline.path)
    with ExitStack() as open_until_done:
        service = LocalService(
            folder / "service",
            BUNDLE,
            port=free_port(),
            environment={FACTS: f"sqlite:///{airline.path}"},
        )
        open_until_done.callback(airline.close)
        open_until_done.enter_context(service)
        runtime = Runtime(service.enroll(AGENT, ROLE))
        open_until_done.callback(runtime.close)
        open_until_done.enter_context(use_runtime(runtime))
        answering = (
            open_until_done.enter_context(approving_people(service)) if people == "approve" else no_approvals
        )
        verdicts = list(replay(data.runs(source), airline, runtime, answering))
    print(report.table(verdicts))
    print("\nwhere policy and label differ:")
    print(report.disagreements(verdicts, report.rules_of((BUNDLE / "airline.cedar").read_text())))
    print(f"\n{len(verdicts)} writes in {time.monotonic() - started:.0f} s, people: {people}")
    print(report.summary(verdicts))


@contextmanager
def approving_people(service: LocalService) -> Iterator[People]:
    """The airline's people, signed in, who approve every review."""
    with ExitStack() as staff:
        colleagues = []
        for name in PEOPLE:
            person = staff.enter_context(Person(service.url))
            person.sign_in(service.sign_in_link(name))
            colleagues.append(person)

        def approve(reviews: Sequence[PendingReview]) -> bool:
            for review in reviews:
                _approve(colleagues, review)
            return True

        yield approve


def _approve(colleagues: list[Person], review: PendingReview) -> None:
    """Everybody who may, until the review is settled and shows no form any more."""
    answered = 0
    for colleague in colleagues:
        if review.url and colleague.is_asked(review.url):
            colleague.approve(review.url, REASON)
            answered += 1
    if not answered:
        raise PageError(f"no signed-in person may vote on {review}")


if __name__ == "__main__":
    sys.exit(main())
