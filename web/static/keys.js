// Keys of the queue. They move and open; none of them ever decides. Off in fields, off while a dialog is open,
// and off altogether when the reader says so (WCAG 2.1.4).

const dialog = document.getElementById("keys");
const button = document.getElementById("show-keys");
const off = document.body.dataset.keys === "off";

const rows = () => [...document.querySelectorAll(".rows .row")];
let last = ""; // the key before, for "g q"

function move(step) {
  const all = rows();
  if (all.length === 0) return;
  const focused = all.findIndex((row) => row.contains(document.activeElement));
  const at = focused < 0 ? all.findIndex((row) => row.classList.contains("row-on")) : focused;
  const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  next.querySelector("a").focus();
}

function openAct(name) {
  const row = rows().find((one) => one.contains(document.activeElement));
  const here = document.getElementById(name);
  if (here && (!row || row.matches(".row-on, .row-alike"))) {
    here.open = true;
    (here.querySelector("textarea, .act-body > a") ?? here.querySelector("summary")).focus();
    return;
  }
  if (row) location.assign(`${row.querySelector("a").getAttribute("href")}#${name}`);
}

function openFilter() {
  const filters = document.getElementById("filters");
  if (!filters) return;
  filters.open = true;
  filters.querySelector(".input").focus();
}

function press(key) {
  const pair = last + key;
  last = key;
  if (pair === "gq") return location.assign("/");
  if (key === "j") return move(1);
  if (key === "k") return move(-1);
  if (key === "a") return openAct("approve");
  if (key === "d") return openAct("deny");
  if (key === "/") return openFilter();
  if (key === "?") return dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (off) return;
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat && !"jk".includes(event.key)) return;
  if (event.target.closest("input, textarea, select, [contenteditable], dialog")) return;
  if (!["j", "k", "a", "d", "g", "q", "/", "?"].includes(event.key)) { last = ""; return; }
  event.preventDefault();
  press(event.key);
});

button.hidden = false;
button.addEventListener("click", () => dialog.showModal());

// A link to #approve or #deny opens that disclosure, as the key does.
const wanted = location.hash.slice(1);
if (wanted === "approve" || wanted === "deny") {
  openAct(wanted);
  // Going to the fragment takes the focus away again: back to the field, unless the reader is elsewhere by then.
  addEventListener("load", () => { if (document.activeElement === document.body) openAct(wanted); }, { once: true });
}
