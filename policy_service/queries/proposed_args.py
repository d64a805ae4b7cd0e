"""Arguments that somebody proposes in place of an effect's: the checks a submission of them would pass, and one more.

They are admitted, fit the reviewed manifest the effect was made with, and name a resource. What the proposer cannot see
they cannot change: hidden arguments are left out, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from countersign.contract import JSON, ContractError, admit, canonicalize, pointer_to
from policy_service.domain.policy_request import InvalidArgsError
from policy_service.errors import InvalidRequestError, RequestError
from policy_service.pap.bundle import Bundle
from policy_service.queries.effect_text import is_hidden
from policy_service.queries.effects import args_of
from policy_service.storage.tables import EffectRow


def hidden_args(effect: EffectRow) -> dict[str, JSON]:
    """The arguments of an effect that people are not shown."""
    return {
        name: value for name, value in args_of(effect).items() if is_hidden(effect.secret, pointer_to(name))
    }


def canonical_proposed_args(bundle: Bundle, effect: EffectRow, args: Mapping[str, JSON]) -> bytes:
    """The canonical bytes of an effect's arguments as somebody proposes them, the hidden ones filled in.

    Raises:
        RequestError: an admission code, or `invalid_request`, naming the argument.
    """
    rules = bundle.rules.versions.get((effect.tool, effect.tool_digest))
    if rules is None:
        raise InvalidRequestError(
            f"the bundle in force does not describe this version of {effect.tool!r}, so no other arguments can be "
            "checked; deny it, and let the agent ask again"
        )
    for name in args:
        if is_hidden(effect.secret, pointer_to(name)):
            raise InvalidRequestError(
                f"{name}: its value is hidden from people, so leave it out; it stays as it is"
            )
    try:
        admitted = admit({**args, **hidden_args(effect)})
    except ContractError as error:
        raise RequestError(str(error), code=error.code) from error
    try:
        rules.codec.encode(admitted)
        rules.manifest.resource_of(admitted)
    except (InvalidArgsError, ContractError) as error:
        raise InvalidRequestError(f"these arguments do not fit {effect.tool!r}: {error}") from error
    raw = canonicalize(admitted)
    if raw == effect.args:
        raise InvalidRequestError("these are the arguments as they are now; change at least one")
    return raw
