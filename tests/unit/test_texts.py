"""Every refusal in the service's source, rendered: it quotes no secret, and names the caller's next step."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import policy_service
from policy_service import errors

ROOT = Path(policy_service.__file__).parent
TYPES = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
KINDS = {name for name, kind in TYPES.items() if issubclass(kind, errors.ServiceError)}
SECRET = re.compile(
    r"(?i)(^|_)(token|cookie|secret|password|api_key|nonce|challenge|jwt|assertion|receipt|authorization)s?$"
    r"|^(args|body|raw|headers|environ|private)$"
)
NEEDS_A_STEP = {"UnauthenticatedError", "StorageUnavailableError", "PoliciesBehindError", "StartError"}
CODES_WITH_A_STEP = {"bad_token", "expired_token", "use_nonce", "csrf", "superseded", "step_up_required"}
STEP = re.compile(
    r"(?i)\b(add|ask|back|call|check|choose|close|confirm|copy|enroll?|give|install|keep|link|lower|makes?|move|name|open|pick|press|put|raise|read|redeem"
    r"|reinstall|remove|rename|repeat|restart|restore|run|see|send|set|show|sign(?!-in)|start|stop|try|use|wait|write)\b"
)


class Refusal(NamedTuple):
    """A place that makes an error: its class, code and text, and the names of the values it quotes."""

    where: str
    kind: str
    code: str
    text: str
    quoted: frozenset[str]


def _rendered(node: ast.expr) -> str:
    """The text of an expression, with `<>` for each value that is only known when it runs."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_rendered(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _rendered(node.left) + _rendered(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "<>"


def _name(node: ast.AST) -> str | None:
    """The name of a value that is quoted as it is; `f(x)` quotes what f makes of x."""
    while isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return node.slice.value
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _refusals() -> Iterator[Refusal]:
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and node.args and _name(node.func) in KINDS:
                detail = node.args[0]
                parts = [each.value for each in ast.walk(detail) if isinstance(each, ast.FormattedValue)]
                members = [each.value for each in node.keywords if each.arg != "code"]
                quoted = frozenset(name for part in (detail, *parts, *members) if (name := _name(part)))
                where = f"{file.relative_to(ROOT)}:{node.lineno}"
                code = next((each.value for each in node.keywords if each.arg == "code"), detail)
                named = code.value if isinstance(code, ast.Constant) else _name(code)
                yield Refusal(where, _name(node.func) or "", str(named).lower(), _rendered(detail), quoted)


REFUSALS = list(_refusals())


def test_the_catalogue_holds_every_kind_of_refusal() -> None:
    families = {"ServiceError", "RequestError", "ServerError"}
    assert {each.kind for each in REFUSALS} >= KINDS - families - {"PoliciesBehindError"}


def test_no_refusal_quotes_a_secret() -> None:
    assert [each for each in REFUSALS if any(map(SECRET.search, each.quoted))] == []


def test_refusals_the_caller_can_end_name_the_next_step() -> None:
    of_the_kinds = [each for each in REFUSALS if each.kind in NEEDS_A_STEP or each.code in CODES_WITH_A_STEP]
    needing = [
        each for each in of_the_kinds if not each.text.endswith(("<>", "<>)"))
    ]  # which ends with a cause
    assert [each for each in needing if not STEP.search(each.text)] == []
