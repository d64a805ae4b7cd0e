"""The exceptions for invalid bytes, values and tokens.

Every error has a stable `code` for programs and a sentence for people:

    ContractError                 anything this package refuses
        AdmissionError              bytes or a value outside strict I-JSON
        ManifestError               a tool manifest, or args that do not fit one
        PointerError                a JSON pointer that is malformed or matches nothing
        BadKeyError                 key material that is not a valid Ed25519 key
        IllegalTransitionError      a state transition that the table does not contain
        WireError                   a request or a response of the wrong shape
        VerificationError           a token refused, at a numbered step

No message contains a token, a key or a secret.
"""


class ContractError(ValueError):
    """Base class; `code` is stable, the text is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class AdmissionError(ContractError):
    """Bytes or a value that strict I-JSON admission refuses (design section 6, RFC 7493)."""


class ManifestError(ContractError):
    """A tool manifest that breaks a rule, or args that do not fit it."""


class PointerError(ContractError):
    """A JSON pointer (RFC 6901) that is malformed or matches nothing in this value."""


class BadKeyError(ContractError):
    """Key material that is not exactly one valid Ed25519 key, or a key set that is ambiguous."""


class IllegalTransitionError(ContractError):
    """A state transition that the table does not contain."""


class WireError(ContractError):
    """A JSON body that does not fit its model; `problems` lists (pointer, message)."""

    def __init__(self, code: str, message: str, problems: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(code, message)
        self.problems = problems


class VerificationError(ContractError):
    """A token was refused.

    The text is constant on purpose, so that the presenter of the token learns nothing from it. `step` is the number of
    the step that refused, `code` its exact reason and `detail` further information. They belong in the verifier's own
    log, never in a response.
    """

    TEXT = "the token was refused; the verifier's log names the step, ask for a new token"

    def __init__(self, step: int, code: str, detail: str = "") -> None:
        super().__init__(code, self.TEXT)
        self.step = step
        self.detail = detail
