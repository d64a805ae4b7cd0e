// Ask the authenticator after a press, and submit its response with the form.

const form = document.getElementById("ceremony");
const button = document.getElementById("ask");
const status = document.getElementById("status");

const REFUSED = {
  NotAllowedError: "Nothing was confirmed: it was cancelled, or it took too long. Press again to try once more.",
  InvalidStateError: "This device already has a passkey of yours. Nothing was added.",
  SecurityError: "This address cannot use passkeys. Nothing was confirmed.",
};

function ask() {
  const options = JSON.parse(form.dataset.options);
  return form.dataset.kind === "create"
    ? navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options) })
    : navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options) });
}

async function press(event) {
  event.preventDefault();
  button.disabled = true;
  status.textContent = "Your browser is asking. Follow what it shows.";
  try {
    form.elements.credential.value = JSON.stringify(await ask());
    form.submit();
  } catch (error) {
    status.textContent = REFUSED[error.name] ?? `Nothing was confirmed (${error.name}). Press again to try once more.`;
    button.disabled = false;
  }
}

if (window.PublicKeyCredential?.parseRequestOptionsFromJSON) {
  button.disabled = false;
  form.addEventListener("submit", press);
} else {
  status.textContent = "This browser does not support passkeys.";
}
