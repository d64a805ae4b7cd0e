// One press, one question to an authenticator, one form that takes its answer back. Nothing is asked before the press,
// and nothing is sent but by the form.

const form = document.getElementById("ceremony");
const button = document.getElementById("ask");
const told = document.getElementById("told");

const REFUSED = {
  NotAllowedError: "Nothing was confirmed: it was cancelled, or it took too long. Press again to try once more.",
  InvalidStateError: "This device holds a passkey of yours already. Nothing was added.",
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
  told.textContent = "Your browser is asking. Follow what it shows.";
  try {
    form.elements.credential.value = JSON.stringify(await ask());
    form.submit();
  } catch (error) {
    told.textContent = REFUSED[error.name] ?? `Nothing was confirmed (${error.name}). Press again to try once more.`;
    button.disabled = false;
  }
}

if (window.PublicKeyCredential?.parseRequestOptionsFromJSON) {
  button.disabled = false;
  form.addEventListener("submit", press);
} else {
  told.textContent = "This browser knows no passkeys. Nothing was asked.";
}
