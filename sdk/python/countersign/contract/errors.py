"""What can be wrong with bytes, values and tokens, as one small tree of exceptions.

Every error has a stable `code` for programs and a sentence for people. The tree:

    ContractError                 anything this package refuses
      AdmissionError              bytes or a value outside strict I-JSON
      ManifestError               a tool manifest, or args that do not fit one
      PointerError                a JSON pointer that is malformed or leads nowhere
      BadKeyError                 key material that is not a sound Ed25519 key
      IllegalMoveError            a state that may not follow another
      WireError                   a request or an answer of the wrong shape
      VerificationError           a token refused, at a numbered step

No message here holds a token, a key or a secret.
"""


class ContractError(ValueError):
    """Something this package refuses; `code` is stable, the text is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class AdmissionError(ContractError):
    """Bytes or a value that strict I-JSON admission refuses (design section 6, RFC 7493)."""


class ManifestError(ContractError):
    """A tool manifest that breaks a rule, or args that do not fit it."""


class PointerError(ContractError):
    """A JSON pointer (RFC 6901) that is malformed or names nothing in this value."""


class BadKeyError(ContractError):
    """Key material that is not exactly one sound Ed25519 key, or a key set that is ambiguous."""


class IllegalTransitionError(ContractError):
    """A state was asked to move where the table does not lead."""


class WireError(ContractError):
    """A body that is JSON but not the model it should be; `problems` lists (pointer, message)."""

    def __init__(self, code: str, message: str, problems: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(code, message)
        self.problems = problems


class VerificationError(ContractError):
    """A token was refused.

    The text is constant on purpose: whoever presented the token learns nothing from it. `step` is the number
    in the list of steps that refused, `code` its exact reason and `detail` more of it where there is more;
    they belong in the verifier's own log, never in an answer.
    """

    TEXT = "the token was refused; the verifier's log names the step, ask for a new token"

    def __init__(self, step: int, code: str, detail: str = "") -> None:
        super().__init__(code, self.TEXT)
        self.step = step
        self.detail = detail
