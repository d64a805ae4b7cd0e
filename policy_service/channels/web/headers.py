"""The headers that keep a page shut: nothing inline, nothing from elsewhere, nowhere else to send a form.

One nonce a response. `Referrer-Policy: same-origin` rather than `no-referrer`, because with the latter
browsers send `Origin: null` with a form, and the origin check would refuse our own page.
"""

from policy_service.identity.origin import Site

_CSP = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types htmx"
)
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Robots-Tag": "noindex, nofollow",
}
_TWO_YEARS_SECONDS = 63_072_000


def common_headers(site: Site) -> dict[str, str]:
    """For every answer, static files and event streams included."""
    if not site.secure:
        return dict(_ALWAYS)
    return _ALWAYS | {"Strict-Transport-Security": f"max-age={_TWO_YEARS_SECONDS}"}


def page_headers(site: Site, nonce: str) -> dict[str, str]:
    """For a page or a fragment: its content policy, and kept nowhere."""
    return common_headers(site) | {
        "Content-Security-Policy": _CSP.format(nonce=nonce),
        "Cache-Control": "no-store",
    }


def asset_headers(site: Site) -> dict[str, str]:
    """For a file named by its digest; its own policy holds when it is opened by itself."""
    return common_headers(site) | {
        "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
        "Cache-Control": "public, max-age=31536000, immutable",
    }
