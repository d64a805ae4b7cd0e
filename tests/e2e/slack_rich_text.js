// Draws the rich text of one message where the page wrote "[rich_text]", from the blocks the server keeps: as text
// nodes only, so nothing in it is ever parsed; a date as its fallback says it. What Slack would draw otherwise
// (colours, icons) is left out.
async (message) => {
  const get = async (path) => (await fetch(`/_control/${path}`)).json();
  const kept = [];
  for (const { id } of (await get("state")).channels) kept.push(...(await get(`messages/${id}`)).messages);
  const blocks = kept.find(({ ts }) => ts === message.dataset.ts)?.blocks ?? [];
  const rich = blocks.filter(({ type }) => type === "rich_text");

  const inline = (said) => {
    const tag = said.type === "link" ? "u" : said.style?.code ? "code" : said.style?.bold ? "strong" : "span";
    const drawn = document.createElement(tag);
    drawn.textContent = said.text ?? said.url ?? said.fallback ?? said.user_id ?? `:${said.name}:`;
    return drawn;
  };
  const shapes = { rich_text_preformatted: "pre", rich_text_quote: "blockquote", rich_text_list: "ul" };
  const section = (part) => {
    const drawn = document.createElement(shapes[part.type] ?? "div");
    drawn.style.whiteSpace = "pre-wrap";
    drawn.style.overflowWrap = "anywhere";
    if (part.type === "rich_text_preformatted")
      drawn.style.cssText += "background:#f8f8f8;border:1px solid #ddd;border-radius:4px;padding:8px;margin:4px 0";
    const item = (inner) => {
      const line = document.createElement("li");
      line.append(...inner.elements.map(inline));
      return line;
    };
    drawn.append(...(part.elements ?? []).map((inner) => (inner.elements ? item(inner) : inline(inner))));
    return drawn;
  };

  // What was drawn before is drawn anew: the page leaves it standing when the message changes.
  const isRich = (at) => at.dataset.drawn === "rich_text" || at.textContent === "[rich_text]";
  const places = [...message.querySelectorAll(".bk-unknown")].filter(isRich);
  places.slice(0, rich.length).forEach((at, index) => {
    at.replaceChildren(...rich[index].elements.map(section));
    at.dataset.drawn = "rich_text";
    at.style.cssText = "color:inherit;font-size:inherit";
  });
}
