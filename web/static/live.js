// Time left, the state of the connection, and which theme the button leads to. It changes words in place; it never
// moves a row, takes the focus or sends anything.

const MINUTE = 60_000;
const SOON = 15 * MINUTE; // as in formatting.py
const SAID_AT = [60, 15, 5, 1]; // minutes left that are announced to screen readers
const skew = Date.parse(document.body.dataset.now) - Date.now(); // the server's clock counts

function words(left) {
  if (left <= 0) return "time is up";
  const minutes = Math.floor(left / MINUTE);
  if (minutes < 1) return "under 1 min";
  const [d, h, m] = [Math.floor(minutes / 1440), Math.floor(minutes / 60) % 24, minutes % 60];
  if (d) return h ? `${d} d ${h} h` : `${d} d`;
  if (h) return m ? `${h} h ${m} min` : `${h} h`;
  return `${m} min`;
}

function tick() {
  for (const node of document.querySelectorAll("[data-due]")) {
    const left = Date.parse(node.dataset.due) - Date.now() - skew;
    const text = words(left) + (left > 0 && !("bare" in node.dataset) ? " left" : "");
    if (node.textContent !== text) show(node, text, left);
  }
}

function show(node, text, left) {
  node.textContent = text;
  if ("bare" in node.dataset) node.classList.toggle("soon", left < SOON);
  if (!node.dataset.opened) return;
  node.closest(".due").classList.toggle("due-soon", left < SOON);
  const part = left / (Date.parse(node.dataset.due) - Date.parse(node.dataset.opened));
  document.getElementById("ring").setAttribute("stroke-dasharray", `${Math.max(0, Math.round(part * 100))} 100`);
  if (left <= 0 || SAID_AT.includes(Math.floor(left / MINUTE))) document.getElementById("due-said").textContent = text;
}

setInterval(tick, 1000);

// hx-csp gates what htmx itself reads; a stream opened by hx-sse passes it by (hx-csp 4.0.1). So every request, of
// any extension, must come from an element that carries this page's nonce.
const nonce = document.querySelector("script[nonce]").nonce;
document.addEventListener("htmx:config:request", (event) => {
  if (event.detail.ctx.sourceElement?.getAttribute("hx-nonce") !== nonce) event.preventDefault();
});

const lost = document.getElementById("lost");
document.addEventListener("htmx:sse:error", () => {
  if (!lost.hidden) return;
  lost.querySelector("time").textContent = new Date(Date.now() + skew).toISOString().slice(11, 16) + " UTC";
  lost.hidden = false;
});
document.addEventListener("htmx:sse:after:connection", () => { if (lost) lost.hidden = true; });

// What the pill's fragment says besides its words: how many reviews need this reader, for the title and the icon, and
// which rows have settled. Such a row is greyed out until the page is loaded again.
document.addEventListener("htmx:after:swap", () => {
  const data = document.getElementById("news-data");
  if (!data) return;
  const bare = document.title.replace(/^\([\d,+]+\) /, "");
  const waits = data.dataset.waits;
  document.title = waits ? `(${waits}) ${bare}` : bare;
  const icon = document.getElementById("icon");
  if (waits) icon.href = icon.dataset.waits;
  for (const id of data.dataset.settled.split(" ").filter(Boolean)) grey(document.querySelector(`.row[data-review="${CSS.escape(id)}"]`));
});

function grey(row) {
  if (!row || row.classList.contains("row-settled")) return;
  row.classList.add("row-settled");
  const said = document.createElement("span");
  said.className = "tag";
  said.textContent = "decided meanwhile";
  row.querySelector(".row-meta").append(said);
}

const theme = document.getElementById("theme");
if (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches) theme.value = "light";
